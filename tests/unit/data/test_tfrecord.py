from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratagem.data import DataLossError, Dataset, InvalidArgumentError, NotFoundError
from stratagem.data import TFRecordDataset as Records
from stratagem.io import TFRecordOptions, TFRecordWriter

RECORDS = [b"", b"one", b"\0" * 3, bytes(range(256)) * 20, b"last"]


def write(path, records, compression=None):
    with TFRecordWriter(path, compression) as writer:
        for record in records:
            writer.write(record)
    return str(path)


@pytest.mark.parametrize("compression", [None, "", "GZIP", "ZLIB"])
def test_what_is_written_is_read(tmp_path, compression):
    path = write(tmp_path / "file", RECORDS, compression)
    assert list(Records(path, compression)) == RECORDS
    assert list(Records([path, path], compression).skip(4)) == RECORDS[4:] + RECORDS


def test_the_format_is_the_published_one(tmp_path):
    path = write(tmp_path / "file", [b"\0" * 32])
    data = (tmp_path / "file").read_bytes()
    assert data[:8] == (32).to_bytes(8, "little")
    assert data[12:44] == b"\0" * 32
    # CRC-32C of 32 zero bytes is 8A9136AA (RFC 3720, appendix B.4).
    checksum = 0x8A9136AA
    masked = ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF
    assert data[44:] == masked.to_bytes(4, "little")
    assert list(Records(path)) == [b"\0" * 32]


def test_records_larger_than_a_block(tmp_path):
    records = [b"a" * 3_000_000, b"b", b"c" * 1_200_000]
    assert list(Records(write(tmp_path / "file", records))) == records
    assert list(Records(write(tmp_path / "zip", records, "GZIP"), "GZIP")) == records


@pytest.mark.parametrize("compression", [None, "GZIP", "ZLIB"])
@pytest.mark.parametrize("num_parallel_reads", [None, 2])
def test_state_at_every_record_of_many_files(tmp_path, compression, num_parallel_reads):
    paths = [
        write(tmp_path / f"{i}", [f"{i}-{j}".encode() for j in range(i + 2)], compression)
        for i in range(3)
    ]
    dataset = Records(paths, compression, num_parallel_reads).shuffle(4, seed=1).repeat(2)
    everything = list(iter(dataset))
    assert len(everything) == 18
    iterator = iter(dataset)
    for count in range(19):
        state = json.loads(json.dumps(iterator.get_state()))
        rest = list(restore(dataset, state))
        assert len(rest) == 18 - count
        if rest:
            assert next(iterator) == rest[0]


def restore(dataset, state):
    iterator = iter(dataset)
    iterator.set_state(state)
    return iterator


def test_parallel_reads_take_turns(tmp_path):
    paths = [write(tmp_path / name, [f"{name}{j}".encode() for j in range(3)]) for name in "abc"]
    in_turn = list(Records(paths, num_parallel_reads=2))
    assert in_turn == [b"a0", b"b0", b"a1", b"b1", b"a2", b"b2", b"c0", b"c1", b"c2"]
    names = Dataset.from_tensor_slices(paths)
    assert list(names.interleave(Records, cycle_length=2)) == in_turn
    assert sorted(Records(Dataset.list_files(str(tmp_path / "*")))) == sorted(in_turn)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_change_of_a_file_is_noticed(data, tmp_path_factory):
    records = [b"first record", b"second", b"third one"]
    path = tmp_path_factory.mktemp("records") / "file"
    content = bytearray((write(path, records), path.read_bytes())[1])
    if data.draw(st.booleans()):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place] ^= 1 << data.draw(st.integers(0, 7))
    else:
        del content[data.draw(st.integers(1, len(content) - 1)) :]
    path.write_bytes(content)
    boundaries = [28, 28 + 22]
    if len(content) in boundaries:
        assert list(Records(str(path))) == records[: boundaries.index(len(content)) + 1]
        return
    read = []
    with pytest.raises(DataLossError, match=rf"{path}: record [012] at byte"):
        read.extend(Records(str(path)))
    assert read == records[: len(read)]


def test_records_before_a_broken_one_are_given_and_it_is_named(tmp_path):
    path = tmp_path / "file"
    write(path, [b"zero", b"one", b"two", b"three"])
    content = bytearray(path.read_bytes())
    content[2 * 20 - 1 + 12] ^= 1
    path.write_bytes(content)
    iterator = iter(Records(str(path)))
    assert [next(iterator), next(iterator)] == [b"zero", b"one"]
    for _ in range(2):
        with pytest.raises(DataLossError, match=r"file: record 2 at byte 39: the checksum of its"):
            next(iterator)


def test_every_byte_of_equal_records_is_checked(tmp_path):
    path = tmp_path / "file"
    write(path, [b"zero", b"four", b"fine"])
    content = path.read_bytes()
    for place in range(len(content)):
        broken = bytearray(content)
        broken[place] ^= 128
        path.write_bytes(broken)
        number = place // 20
        with pytest.raises(DataLossError, match=rf"record {number} at byte {20 * number}:"):
            list(Records(str(path)).batch(3))


def test_the_first_of_several_broken_records_is_named(tmp_path):
    path = tmp_path / "file"
    write(path, [b"zero", b"one", b"two"])
    content = bytearray(path.read_bytes())
    content[20 + 12] ^= 1
    content[20 + 19] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataLossError, match=r"record 1 at byte 20: the checksum of its data"):
        list(Records(str(path)))


def test_state_between_batches_of_records(tmp_path):
    records = [b"x" * (number % 7) for number in range(30)]
    paths = [write(tmp_path / "a", records[:11]), write(tmp_path / "b", records[11:])]
    dataset = Records(paths).batch(4)
    iterator = iter(dataset)
    for start in range(0, 30, 4):
        state = json.loads(json.dumps(iterator.get_state()))
        rest = [record for batch in restore(dataset, state) for record in batch]
        assert rest == records[start:]
        next(iterator)


def test_truncation_says_what_is_missing(tmp_path):
    path = tmp_path / "file"
    write(path, [b"zero", b"one"])
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(DataLossError, match=r"record 1 at byte 20: it needs 19 bytes, .*after 17"):
        list(Records(str(path)))


@pytest.mark.parametrize("compression", ["GZIP", "ZLIB"])
def test_broken_compression(tmp_path, compression):
    path = tmp_path / "file"
    write(path, [bytes(range(256)) * 9], compression)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataLossError, match=f"file: not a complete {compression} file"):
        list(Records(str(path), compression))
    path.write_bytes(b"plain text, not compressed")
    with pytest.raises(DataLossError, match=f"not a complete {compression} file"):
        list(Records(str(path), compression))


def test_files_that_do_not_exist(tmp_path):
    good = write(tmp_path / "good", [b"x"])
    iterator = iter(Records([good, str(tmp_path / "missing")]))
    assert next(iterator) == b"x"
    with pytest.raises(NotFoundError, match="missing"):
        next(iterator)
    with pytest.raises(FileNotFoundError):
        list(Records(str(tmp_path / "missing")))


@pytest.mark.parametrize("names", [[], 3, [None]])
def test_bad_file_names(names):
    with pytest.raises(InvalidArgumentError, match="file"):
        Records(names)


def test_a_dataset_of_names_must_hold_strings():
    with pytest.raises(InvalidArgumentError, match="one string per element"):
        Records(Dataset.range(3))


def test_bad_arguments(tmp_path):
    with pytest.raises(InvalidArgumentError, match="compression_type"):
        Records("file", "BZIP")
    with pytest.raises(InvalidArgumentError, match="compression_level"):
        TFRecordOptions("GZIP", 10)
    writer = TFRecordWriter(tmp_path / "file")
    with pytest.raises(InvalidArgumentError, match="must be bytes, got str"):
        writer.write("text")
    writer.close()
    with pytest.raises(InvalidArgumentError, match="closed"):
        writer.write(b"late")


def test_flushed_records_can_be_read_while_the_writer_is_open(tmp_path):
    with TFRecordWriter(tmp_path / "file") as writer:
        writer.write(b"early")
        writer.flush()
        assert list(Records(tmp_path / "file")) == [b"early"]
