"""What nvidia-smi prints, in all the shapes that operators have met."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.host.remote import gpu_faults, rocm_text, smi_text

QUERY = smi_text.query_fields(
    "index,name,memory.used,memory.total,utilization.gpu,power.draw,temperature.gpu"
)


def test_missing_fields_blank_only_themselves() -> None:
    text = (
        "0, Tesla K80, 1768, 11439, [Not Supported], [Insufficient Permissions], 58\n"
        "1, Quadro 2000, 0, 2004, [N/A], Unknown, N/A\n"
        "2, NVIDIA H200, 16380, 143771, 5, 88.01, [Unknown Error]\n"
    )
    k80, quadro, h200 = smi_text.gpus(text, QUERY)
    assert (k80["memory_used_mib"], k80["utilisation_pct"], k80["power_w"], k80["temperature_c"]) == (
        1768,
        None,
        None,
        58,
    )
    assert (quadro["memory_used_mib"], quadro["power_w"], quadro["temperature_c"]) == (0, None, None)
    assert (h200["power_w"], h200["temperature_c"], h200["memory_kind"]) == (88.01, None, "own")


def test_header_units_blank_lines_and_another_order_than_asked() -> None:
    text = (
        "\nutilization.gpu [%], index, memory.used [MiB], memory.total [MiB], name\n\n"
        "98 %, 0, 101044 MiB, 143771 MiB, NVIDIA H200\n0 %, 1, 512 MiB, 143771 MiB, NVIDIA H200\n\n"
    )
    first, second = smi_text.gpus(text, QUERY)
    assert (first["index"], first["memory_used_mib"], first["utilisation_pct"]) == (0, 101044, 98)
    assert (second["index"], second["memory_used_mib"], second["name"]) == (1, 512, "NVIDIA H200")


def test_error_sentences_between_rows_are_no_gpus() -> None:
    text = "0, NVIDIA H200, 4 MiB, 143771 MiB, 0 %, 80 W, 30\nUnable to determine the device handle, sorry\n"
    assert [g["index"] for g in smi_text.gpus(text, QUERY)] == [0]


def test_unified_memory_is_not_zero_of_zero_and_denied_is_not_unified() -> None:
    unified = smi_text.gpus("0, NVIDIA GB10, [N/A], [N/A], 0, 11.17, 35", QUERY)[0]
    assert (unified["memory_kind"], unified["memory_used_mib"], unified["memory_total_mib"]) == (
        "unified",
        None,
        None,
    )
    denied = smi_text.gpus("0, X, [Insufficient Permissions], [Insufficient Permissions], 0, 1, 3", QUERY)[0]
    assert denied["memory_kind"] == ""
    sliced = smi_text.gpus("0, [N/A], Enabled", ["index", "memory.total", "mig.mode.current"])[0]
    assert (sliced["memory_kind"], sliced["mig"]) == ("", True)


def test_a_lost_card_in_its_row_is_an_alarm_with_its_bus() -> None:
    fields = ["index", "pci.bus_id", "memory.used", "utilization.gpu"]
    good, lost = smi_text.gpus("0, 0000:0A:00.0, 9, 1\n1, 0000:0B:00.0, [GPU is lost], [GPU is lost]", fields)
    assert good["problem"] == "" and good["memory_used_mib"] == 9
    assert "0000:0B:00.0" in lost["problem"] and lost["memory_used_mib"] is None


def test_empty_process_list_is_free_only_when_memory_is_too() -> None:
    gpus = smi_text.gpus("0, 76011, GPU-a\n1, 4, GPU-b\n2, [N/A], GPU-c", ["index", "memory.used", "uuid"])
    smi_text.attach_all(gpus, [])
    assert [g["processes"] for g in gpus] == [None, [], []]
    assert [smi_text.occupancy(g) for g in gpus] == ["in use, processes hidden", "free", "unknown"]
    smi_text.attach_all(gpus, None)
    assert [g["processes"] for g in gpus] == [None, None, None]


def test_apps_are_matched_to_cards_by_what_was_asked() -> None:
    gpus = smi_text.gpus("0, 9000, GPU-a\n1, 9000, GPU-b", ["index", "memory.used", "uuid"])
    apps = smi_text.apps(
        "pid, process_name, gpu_uuid, used_gpu_memory [MiB]\n866, sglang::scheduler, GPU-b, 8900 MiB\n",
        smi_text.APP_FIELDS,
    )
    smi_text.attach_all(gpus, apps)
    assert gpus[0]["processes"] is None
    assert [(p["pid"], p["memory_mib"], p["name"]) for p in gpus[1]["processes"]] == [
        (866, 8900, "sglang::scheduler")
    ]
    by_index = smi_text.apps("0, 77, [N/A]", ["gpu_index", "pid", "used_memory [MiB]"])
    assert by_index == [{"index": 0, "pid": 77, "memory_mib": None, "name": ""}]


def test_driver_mismatch_names_both_versions() -> None:
    told = gpu_faults.diagnose(
        "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 550.107\n",
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.90.07  Fri May 31 09:35:42 UTC 2024\n",
    )
    assert told["category"] == "driver_mismatch"
    assert told["versions"] == {"library": "550.107", "kernel_module": "550.90.07"}
    dmesg = gpu_faults.diagnose(
        "Driver/library version mismatch",
        "NVRM: API mismatch: the client has the version 535.183, but\nNVRM: this kernel module has the version 535.161.",
    )
    assert dmesg["versions"] == {"library": "535.183", "kernel_module": "535.161"}
    opened = gpu_faults.diagnose(
        "Driver/library version mismatch", "Open Kernel Module for x86_64  580.65.06  Release"
    )
    assert opened["versions"] == {"library": None, "kernel_module": "580.65.06"}


@pytest.mark.parametrize(
    "text",
    [
        "Unable to determine the device handle for GPU0000:0B:00.0: Unknown Error",
        "Unable to determine the device handle for GPU 0000:0B:00.0: GPU is lost.  Reboot the system to recover",
        "NVRM: Xid (PCI:0000:0B:00): 79, GPU has fallen off the bus. GPU 0000:0B:00.0",
    ],
)
def test_lost_card_is_named_by_its_bus(text: str) -> None:
    told = gpu_faults.diagnose(text)
    assert told["category"] == "gpu_lost" and told["bus_ids"] == ["0000:0B:00.0"]


def test_a_field_that_is_unknown_is_named() -> None:
    text = 'Field "clocks_event_reasons.active" is not a valid field to query.\n'
    assert gpu_faults.invalid_fields(text) == ["clocks_event_reasons.active"]
    assert gpu_faults.diagnose(text) == {}


def test_throttle_words_leave_idle_out() -> None:
    row = ["index", "clocks_throttle_reasons.active"]
    assert smi_text.gpus("0, 0x0000000000000001", row)[0]["throttle"] == []
    assert smi_text.gpus("0, 0x0000000000000044", row)[0]["throttle"] == ["power cap", "hot (hardware limit)"]
    assert smi_text.gpus("0, [N/A]", row)[0]["throttle"] is None


def test_rocm_bytes_become_mib_from_json_and_csv() -> None:
    as_json = '{"card0": {"GPU use (%)": "7", "VRAM Total Memory (B)": "1048576000", "VRAM Total Used Memory (B)": "N/A"}, "system": {"v": "1"}}'
    gpu = rocm_text.rocm("WARNING: low power\n" + as_json)[0]
    assert (gpu["memory_total_mib"], gpu["memory_used_mib"], gpu["utilisation_pct"]) == (1000, None, 7)
    table = "device,GPU use (%),VRAM Total Memory (B),VRAM Total Used Memory (B)\ncard1,0,2097152,1048576\n\n"
    gpu = rocm_text.rocm(table)[0]
    assert (gpu["index"], gpu["memory_total_mib"], gpu["memory_used_mib"], gpu["power_w"]) == (1, 2, 1, None)


@given(st.text(max_size=400))
def test_any_text_gives_no_error_and_no_made_up_number(text: str) -> None:
    for gpu in smi_text.gpus(text, QUERY):
        used = gpu["memory_used_mib"]
        assert used is None or isinstance(used, float)
    smi_text.apps(text, smi_text.APP_FIELDS)
    gpu_faults.diagnose(text)
    rocm_text.rocm(text)


def test_a_cell_that_is_no_number_is_not_told_and_takes_nothing_with_it() -> None:
    text = (
        "index, name, memory.used [MiB], power.draw [W], ecc.errors.uncorrected.volatile.total\n"
        "0, H200, 100 MiB, [Insufficient Permissions], 3 errors\n"
        "1, H200, 1e999 MiB, 70 W, 1e999\n"
    )
    told = smi_text.board(text, [])
    first, second = told["gpus"]
    assert (first["memory_used_mib"], first["power_w"], first["ecc_uncorrected"]) == (100, None, 3)
    assert (second["memory_used_mib"], second["power_w"], second["ecc_uncorrected"]) == (None, 70, None)
    assert told["category"] == "" and told["problem"] == ""


def test_a_whole_tool_that_may_not_ask_is_told_as_that() -> None:
    assert smi_text.board("NVML: Insufficient Permissions\n", [])["category"] == "denied"
