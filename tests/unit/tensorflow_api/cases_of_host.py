"""Functions of strings, bytes and tables, assertions, and what is printed."""

import base64
import gzip
import os
import tempfile
import zlib

import numpy as np
from compared_cases import case

WORDS = ["Hello World", "", "  a  b ", "naïve Ünicode", "x,y,,z", "3.25"]
NESTED = [["a", "bb"], ["ccc", ""]]
F = np.array([[1.5, -2.0, 3.0], [0.0, 4.5, -6.0]], np.float32)
I = np.array([[1, -2, 3], [0, 4, -6]], np.int32)  # noqa: E741
LONG = ["q" * n for n in (1, 3, 4, 7, 8, 16, 17, 32, 33, 64, 65, 100, 128, 129, 200)] + [
    "Hello",
    "TensorFlow",
    "2.x",
]


def ragged(result):
    return result.flat_values, result.row_splits


def printed(tf, *values, **options):
    folder = tempfile.mkdtemp()
    path = os.path.join(folder, "printed")
    tf.print(*values, output_stream=f"file://{path}", **options)
    with open(path) as file:
        return tf.constant(file.read())


def printed_structure(tf):
    return printed(
        tf, [tf.constant([1, 2]), {"a": tf.constant(1.5)}], (tf.constant(2),), tf.Variable(3.0)
    )


def static_table(tf, keys, default=-1):
    table = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(["a", "b"], tf.constant([10, 20], tf.int64)), default
    )
    return table.lookup(tf.constant(keys)), table.size(), table[tf.constant(keys)]


def table_of_integers(tf):
    table = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(tf.constant([1, 2], tf.int64), ["one", "two"]), "none"
    )
    return table.lookup(tf.constant([2, 5, 1], tf.int64))


def table_of_file(tf, key_index, value_index, key_dtype, value_dtype, default):
    path = os.path.join(tempfile.mkdtemp(), "words.txt")
    with open(path, "w") as file:
        file.write("one\t1\ntwo\t2\nthree\t3\n")
    words = tf.lookup.TextFileInitializer(
        path, getattr(tf, key_dtype), key_index, getattr(tf, value_dtype), value_index
    )
    keys = (
        tf.constant(["two", "four", "three\t3"])
        if key_dtype == "string"
        else tf.constant([0, 2, 7], tf.int64)
    )
    return tf.lookup.StaticHashTable(words, default).lookup(keys)


def vocabulary(tf, buckets):
    words = tf.lookup.KeyValueTensorInitializer(["a", "b"], tf.constant([0, 1], tf.int64))
    table = tf.lookup.StaticVocabularyTable(words, buckets)
    return table.lookup(tf.constant(["b", "x", "unknown", "a", "yy"])), table.size()


def twice_in_a_table(tf):
    words = tf.lookup.KeyValueTensorInitializer(["a", "a"], tf.constant([0, 1], tf.int64))
    return tf.lookup.StaticHashTable(words, -1).size()


def mutable_table(tf):
    table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)
    table.insert(tf.constant(["a", "b"]), tf.constant([1, 2], tf.int64))
    table.insert(tf.constant(["a"]), tf.constant([3], tf.int64))
    table.remove(tf.constant(["b", "z"]))
    return table.lookup(tf.constant([["a", "b"]])), table.size(), table.export()


def written_array(tf, **options):
    array = tf.TensorArray(tf.float32, size=3, **options)
    array = array.write(0, [1.0, 2.0]).write(2, [3.0, 4.0])
    array = array.write(1, tf.constant([5.0, 6.0]))
    return array.read(1), array.size(), array.write(1, [7.0, 8.0]).stack()


def unstacked_array(tf):
    array = tf.TensorArray(tf.int32, size=0, dynamic_size=True).unstack([[1, 2], [3, 4]])
    return array.concat(), array.gather([1, 0]), array.write(3, [5, 6]).size()


def scattered_array(tf):
    array = tf.TensorArray(tf.int32, size=3).scatter([2, 0, 1], [[1], [2], [3]])
    parts = tf.TensorArray(tf.float32, size=2, infer_shape=False).split([1.0, 2.0, 3.0], [1, 2])
    return array.stack(), parts.read(1), parts.read(0)


def array_in_a_loop(tf):
    def body(i, array):
        return i + 1, array.write(i, tf.cast(i, tf.float32) * 2.0)

    _, array = tf.while_loop(
        lambda i, _: i < 4, body, (0, tf.TensorArray(tf.float32, size=4, element_shape=[]))
    )
    return array.stack()


def wrong_place(tf):
    return tf.TensorArray(tf.float32, size=2).write(2, 1.0).size()


def wrong_dtype(tf):
    return tf.TensorArray(tf.float32, size=2).write(0, tf.constant(1)).size()


def wrong_shape(tf):
    return tf.TensorArray(tf.float32, size=2).write(0, 1.0).write(1, [1.0]).size()


def read_twice(tf):
    array = tf.TensorArray(tf.float32, size=2).write(0, 1.0)
    return array.read(0), array.read(1)


def averages(tf, **options):
    weight, bias = tf.Variable([1.0, 2.0]), tf.Variable(3.0)
    ema = tf.train.ExponentialMovingAverage(0.9, **options)
    found = []
    for step in range(3):
        ema.apply([weight, bias])
        weight.assign_add([1.0, float(step)])
        bias.assign(bias * 2.0)
        found += [tf.identity(ema.average(weight)), tf.identity(ema.average(bias))]
    return found


def modules(tf):
    class Layer(tf.Module):
        def __init__(self, n, name=None):
            super().__init__(name=name)
            self.w = tf.Variable([float(n)])
            self.count = tf.Variable(n, trainable=False)

    class BigNet(tf.Module):
        def __init__(self):
            super().__init__()
            self.out = Layer(3, name="last")
            self.layers = [Layer(1), Layer(2)]
            self.parts = {"z": tf.Variable([9.0]), "a": tf.Variable([8.0])}
            self.again = self.out

    net = BigNet()
    names = [net.name, *(m.name for m in net.submodules)]
    return (
        tf.constant(names),
        [tf.identity(v) for v in net.variables],
        [tf.identity(v) for v in net.trainable_variables],
        len(net.non_trainable_variables),
    )


def scopes(tf):
    with tf.name_scope("outer") as outer, tf.name_scope("inner") as inner:
        pass
    return tf.constant([outer, inner])


def python_called(tf):
    a = tf.numpy_function(lambda x: x * 2, [tf.constant([1, 2])], tf.int32)
    b, c = tf.py_function(
        lambda x: (x.numpy() + 1, x.numpy().sum()),
        [tf.constant([1.0, 2.0])],
        [tf.float32, tf.float64],
    )
    return a, b, c


def written_file(tf):
    path = os.path.join(tempfile.mkdtemp(), "new", "folder", "file.bin")
    tf.io.write_file(path, b"\x00bytes\x00")
    found = tf.io.matching_files(os.path.join(os.path.dirname(path), "*.bin"))
    return tf.io.read_file(path), tf.io.decode_raw(tf.io.read_file(path), tf.uint8), len(found)


def sequences(tf):
    train, io = tf.train, tf.io
    words = [train.Feature(int64_list=train.Int64List(value=[n, n + 1])) for n in (3, 5)]
    tags = [train.Feature(bytes_list=train.BytesList(value=v)) for v in ([b"a"], [], [b"b", b"c"])]
    lists = {"words": train.FeatureList(feature=words), "tags": train.FeatureList(feature=tags)}
    label = train.Feature(float_list=train.FloatList(value=[1.5]))
    record = train.SequenceExample(
        context=train.Features(feature={"label": label}),
        feature_lists=train.FeatureLists(feature_list=lists),
    )
    context, steps = io.parse_single_sequence_example(
        record.SerializeToString(),
        {"label": io.FixedLenFeature([], tf.float32)},
        {
            "words": io.FixedLenSequenceFeature([2], tf.int64),
            "tags": io.VarLenFeature(tf.string),
            "none": io.FixedLenSequenceFeature([3], tf.float32, allow_missing=True),
        },
    )
    assert isinstance(steps["tags"], tf.SparseTensor)
    dense = tf.sparse.to_dense(steps["tags"], default_value="-")
    return context["label"], steps["words"], steps["none"], dense, steps["tags"].indices


def ragged_rows(tf):
    rows = tf.RaggedTensor.from_row_lengths(["a", "b", "c"], [2, 0, 1])
    nested = tf.RaggedTensor.from_row_splits(rows, [0, 1, 3])
    cut = tf.RaggedTensor.from_tensor([[1, 0, 2, 0], [0, 0, 0, 0], [3, 4, 5, 6]], padding=0)
    kept = tf.RaggedTensor.from_tensor([[1.0, 2.0], [3.0, 4.0]], lengths=[1, 2])
    return (
        rows.to_tensor("-"),
        rows.to_tensor(shape=[None, 1]),
        nested.to_tensor(),
        cut.to_tensor(9, shape=[2, 5]),
        cut.row_lengths(),
        kept.row_splits,
        kept.flat_values,
        kept[1],
    )


def files(tf):
    gfile, top = tf.io.gfile, tempfile.mkdtemp()
    join = gfile.join
    gfile.makedirs(join(top, "a", "b"))
    gfile.makedirs(join(top, "a", "b"))
    gfile.mkdir(join(top, "c"))
    with gfile.GFile(join(top, "a", "one.txt"), "w") as file:
        file.write("first\nsecond\n")
    with gfile.GFile(join(top, "a", "one.txt"), "a") as file:
        file.write("thïrd")
    with gfile.GFile(join(top, "a", "one.txt")) as file:
        lines = [
            file.readline(),
            file.read(3),
            str(file.tell()),
            *file.readlines(),
            str(file.size()),
        ]
    with gfile.GFile(join(top, "a", "one.txt"), "rb") as file:
        file.seek(2)
        lines += [repr(file.read(4))]
    with gfile.GFile(join(top, "bytes"), "wb") as file:
        file.write("thïrd")
    with gfile.GFile(join(top, "bytes"), "rb") as file:
        lines += [repr(file.read())]
    gfile.remove(join(top, "bytes"))
    gfile.copy(join(top, "a", "one.txt"), join(top, "c", "two.txt"))
    gfile.rename(join(top, "c", "two.txt"), join(top, "c", "three.txt"))
    walked = [
        (os.path.relpath(where, top), sorted(d), sorted(f)) for where, d, f in gfile.walk(top)
    ]
    lines += [repr(sorted(walked)), repr(sorted(gfile.listdir(top)))]
    lines += [repr([os.path.relpath(p, top) for p in sorted(gfile.glob(join(top, "*", "*.txt")))])]
    about = gfile.stat(join(top, "a", "one.txt"))
    lines += [
        repr((about.length, about.is_directory, gfile.isdir(top), gfile.exists(join(top, "x"))))
    ]
    gfile.remove(join(top, "a", "one.txt"))
    gfile.rmtree(join(top, "c"))
    return tf.constant([*lines, repr(sorted(gfile.listdir(top)))])


def file_error(tf, action):
    gfile, top = tf.io.gfile, tempfile.mkdtemp()
    with gfile.GFile(gfile.join(top, "one"), "w") as file:
        file.write("x")
    if action == "read":
        gfile.GFile(gfile.join(top, "none")).read()
    elif action == "copy":
        gfile.copy(gfile.join(top, "one"), gfile.join(top, "one"))
    elif action == "rename":
        gfile.rename(gfile.join(top, "none"), gfile.join(top, "two"))
    elif action == "mkdir":
        gfile.mkdir(top)
    elif action == "listdir":
        gfile.listdir(gfile.join(top, "none"))
    elif action == "remove":
        gfile.remove(gfile.join(top, "none"))
    elif action == "rmtree":
        gfile.rmtree(gfile.join(top, "none"))


def serialized(tf, value, dtype):
    data = tf.io.serialize_tensor(tf.constant(value, getattr(tf, dtype)))
    return data, tf.io.parse_tensor(data, getattr(tf, dtype))


def parsed(tf, batch, shape, count):
    boxes = tf.train.Feature(
        float_list=tf.train.FloatList(value=np.arange(count, dtype=np.float32))
    )
    names = tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"a", b"b"]))
    one = tf.train.Example(
        features=tf.train.Features(feature={"boxes": boxes, "names": names})
    ).SerializeToString()
    empty = tf.train.Example().SerializeToString()
    features = {
        "boxes": tf.io.FixedLenSequenceFeature(shape, tf.float32, allow_missing=True),
        "names": tf.io.FixedLenSequenceFeature(
            [], tf.string, allow_missing=True, default_value="none"
        ),
    }
    found = (
        tf.io.parse_example([one, empty], features)
        if batch
        else tf.io.parse_single_example(one, features)
    )
    return found["boxes"], found["names"]


def asserted(tf, name, *args, **kwargs):
    getattr(tf.debugging, name)(*args, **kwargs)
    return 1


CASES = [
    case("strings.length", WORDS),
    case("strings.length", WORDS, "UTF8_CHAR"),
    case("strings.length", "one", "WORD"),
    case("strings.lower", WORDS),
    case("strings.lower", WORDS, encoding="utf-8"),
    case("strings.upper", NESTED),
    case("strings.upper", WORDS, encoding="utf-8"),
    case("strings.strip", WORDS),
    case("strings.split", WORDS, through=ragged),
    case("strings.split", "a b  c"),
    case("strings.split", WORDS, sep=",", through=ragged),
    case("strings.split", WORDS, sep=",", maxsplit=1, through=ragged),
    case("strings.split", WORDS, maxsplit=1, through=ragged),
    case("strings.bytes_split", WORDS[:3], through=ragged),
    case("strings.bytes_split", "abc"),
    case("strings.join", [NESTED, NESTED], separator="-"),
    case("strings.join", ["a", ["b", "c"]]),
    case("strings.join", [["a"], ["b", "c"]]),
    case("strings.reduce_join", NESTED),
    case("strings.reduce_join", NESTED, 0, separator="+"),
    case("strings.reduce_join", NESTED, axis=-1, keepdims=True),
    case("strings.reduce_join", NESTED, axis=[1, 0], separator=","),
    case("strings.unsorted_segment_join", ["a", "b", "c", "d"], [2, 0, 2, 1], 4, separator=":"),
    case("strings.unsorted_segment_join", ["a", "b"], [2, -1], 4),
    case("strings.ngrams", ["a", "b", "c"], 2),
    case("strings.ngrams", ["a"], 2),
    case("strings.ngrams", ["a"], 2, preserve_short_sequences=True, separator="_"),
    case("strings.substr", ["hello", "world"], 1, 3),
    case("strings.substr", ["hello", "worlds"], [-2, 4], [1, 9]),
    case("strings.substr", "naïve", 1, 2, unit="UTF8_CHAR"),
    case("strings.substr", "abc", 4, 1),
    case("strings.regex_replace", WORDS, "[aeiou]+", "_"),
    case("strings.regex_replace", WORDS, r"(\w)(\w)", r"\2\1"),
    case("strings.regex_replace", WORDS, r"\w", "<\\0>", replace_global=False),
    case("strings.regex_replace", ["a\n", "a"], "a$", "b"),
    case("strings.regex_replace", ["a$b", "x"], "[$]", "b"),
    case("strings.regex_replace", ["é.", "x"], "^.$", "b"),
    case("strings.regex_replace", "a", "(", "b"),
    case("strings.regex_full_match", WORDS, ".* .*"),
    case("strings.regex_full_match", "3.25", r"\d+\.\d+"),
    case("strings.to_number", ["1.5", " -2 ", "1e3", "inf"]),
    case("strings.to_number", ["1", "-7"], "int64"),
    case("strings.to_number", ["1.5"], "int32"),
    case("strings.to_number", ["word"]),
    case("strings.to_number", "99999999999", "int32"),
    *(
        case("strings.as_string", value)
        for value in (
            F,
            I,
            np.array([True, False]),
            np.array([1.5], np.float64),
            ["a"],
            np.array([1 + 2j], np.complex64),
        )
    ),
    case("as_string", F, precision=2),
    case("as_string", F, scientific=True, precision=1),
    case("as_string", F, shortest=True, width=6),
    case("as_string", I, width=4, fill="0"),
    case("as_string", F, width=8, fill="-"),
    case("strings.format", "a {} b {}", [F, I]),
    case("strings.format", "value: {}", np.arange(10)),
    case("strings.format", "%s", ["text"], placeholder="%s"),
    case("strings.format", "{} {}", [F]),
    case("strings.to_hash_bucket_fast", LONG, 1 << 40),
    case("strings.to_hash_bucket_fast", NESTED, 10),
    case("strings.to_hash_bucket_fast", "a", 0),
    case("strings.unicode_decode", ["naïve", "ab"], "UTF-8", through=ragged),
    case("strings.unicode_decode", b"a\xffb", "UTF-8"),
    case("strings.unicode_decode", b"a\xffb", "UTF-8", errors="ignore"),
    case("strings.unicode_decode", b"a\xffb", "UTF-8", errors="strict"),
    case("strings.unicode_split", ["naïve", "ab"], "UTF-8", through=ragged),
    case("strings.unicode_encode", [104, 233, 128512], "UTF-8"),
    case("strings.unicode_encode", [[104, 105], [106, 107]], "UTF-16-BE"),
    case("strings.unicode_transcode", ["naïve"], "UTF-8", "UTF-16-BE"),
    case("io.decode_raw", b"\x01\x00\x02\x00", "int16"),
    case("io.decode_raw", [b"\x00\x00\x80\x3f", b"\x00\x00\x00\x40"], "float32"),
    case("io.decode_raw", b"\x01\x00\x02\x00", "int16", little_endian=False),
    case("io.decode_raw", [b"abc", b"de"], "uint8", fixed_length=4),
    case("io.decode_raw", b"abc", "int16"),
    case("io.decode_raw", [b"abc", b"de"], "uint8"),
    case("io.encode_base64", WORDS),
    case("io.encode_base64", WORDS, pad=True),
    case("io.decode_base64", base64.urlsafe_b64encode(b"\xff\xfe\xfd").rstrip(b"=")),
    case("io.decode_base64", "a?"),
    case("io.decode_compressed", zlib.compress(b"text"), "ZLIB"),
    case("io.decode_compressed", gzip.compress(b"text", mtime=0), "GZIP"),
    case("io.decode_compressed", b"text", "ZLIB"),
    case("io.decode_compressed", b"text"),
    case("io.decode_csv", ["1,a,2.5", ",b,"], [[7], ["none"], [0.5]]),
    case("io.decode_csv", '"1,5"|x', [["d"], ["e"]], field_delim="|"),
    case("io.decode_csv", "NA,3", [[7.0], [0]], na_value="NA"),
    case("io.decode_csv", "1,2,3", [[0], [0]], select_cols=[0, 2]),
    case("io.decode_csv", "1,2,3", [[0], [0]]),
    case("io.decode_csv", "x,2", [[0], [0]]),
    case(written_file),
    case(files),
    case(sequences),
    case(ragged_rows),
    *(
        case(file_error, action)
        for action in ("read", "copy", "rename", "mkdir", "listdir", "remove", "rmtree")
    ),
    *(
        case(serialized, value, dtype)
        for value, dtype in (
            ([1, 2], "int32"),
            ([[1.5]], "float32"),
            (["a", "bc"], "string"),
            (True, "bool"),
            ([], "float32"),
            ([1.5, 2.0], "float16"),
            ([1 + 2j], "complex64"),
        )
    ),
    case(parsed, True, [2], 6),
    case(parsed, False, [2], 6),
    case(parsed, False, [2], 5),
    case(static_table, ["b", "c", "a"]),
    case(static_table, [["b"]]),
    case(table_of_integers),
    case(table_of_file, -2, -1, "string", "int64", -1),
    case(table_of_file, 0, 1, "string", "int64", -1),
    case(table_of_file, -1, 0, "int64", "string", "none"),
    case(vocabulary, 1),
    case(vocabulary, 5),
    case(twice_in_a_table),
    case(mutable_table),
    case(written_array),
    case(written_array, clear_after_read=False),
    case(unstacked_array),
    case(scattered_array),
    case(array_in_a_loop),
    case(wrong_place),
    case(wrong_dtype),
    case(wrong_shape),
    case(read_twice),
    case(averages),
    case(averages, num_updates=3),
    case(modules),
    case(scopes),
    case(python_called),
    case(printed, "text", 1, 2.5, True),
    case(printed, F, I),
    case(printed, np.arange(10), np.arange(48).reshape(2, 3, 8)),
    case(printed, np.arange(40).reshape(20, 2), summarize=1),
    case(printed, np.arange(40).reshape(20, 2), summarize=-1, sep="|", end="!"),
    case(
        printed,
        np.array([0.1, 1e-10, 3.1415927, 1e10, np.inf, np.nan, -0.0], np.float32),
        summarize=-1,
    ),
    case(printed, np.zeros((0, 2), np.float32), np.array([True, False]), np.array(7, np.uint8)),
    case(printed_structure),
    *(
        case(f"bitwise.{name}", I, I[::-1].copy())
        for name in ("bitwise_and", "bitwise_or", "bitwise_xor")
    ),
    case("bitwise.bitwise_and", F, F),
    case("bitwise.invert", np.array([0, 5, 255], np.uint8)),
    case("bitwise.left_shift", I, 2),
    case("bitwise.right_shift", I, np.array([[1, 1, 0], [3, 1, 1]], np.int32)),
    *(
        case(asserted, name, F, F)
        for name in (
            "assert_equal",
            "assert_none_equal",
            "assert_less",
            "assert_less_equal",
            "assert_greater",
            "assert_greater_equal",
            "assert_near",
        )
    ),
    *(
        case(asserted, name, F + 1, F)
        for name in (
            "assert_equal",
            "assert_none_equal",
            "assert_less",
            "assert_less_equal",
            "assert_greater",
            "assert_greater_equal",
            "assert_near",
        )
    ),
    *(
        case(asserted, name, np.array([1.0, 2.0], np.float32))
        for name in (
            "assert_positive",
            "assert_negative",
            "assert_non_negative",
            "assert_non_positive",
            "assert_integer",
            "assert_scalar",
        )
    ),
    *(
        case(asserted, name, np.array([0, -2], np.int32))
        for name in (
            "assert_positive",
            "assert_negative",
            "assert_non_negative",
            "assert_non_positive",
            "assert_integer",
        )
    ),
    case(asserted, "assert_near", F, F + 0.1, atol=0.2),
    case(asserted, "assert_equal", F, F[:, :2].copy()),
    case(asserted, "assert_equal", [], []),
    case(asserted, "assert_equal", I, F),
    case(asserted, "assert_rank", F, 2),
    case(asserted, "assert_rank", F, 1),
    case(asserted, "assert_rank_at_least", F, 3),
    case(asserted, "assert_rank_in", F, (1, 2)),
    case(asserted, "assert_rank_in", F, (1, 3)),
    case(asserted, "assert_scalar", 1.0),
    case(asserted, "assert_type", F, "float32"),
    case(asserted, "assert_type", F, "int32"),
    case(asserted, "assert_same_float_dtype", [F, F]),
    case(asserted, "assert_same_float_dtype", [I, I]),
    case(asserted, "assert_shapes", [(F, ("N", 3)), (I, ("N", "M"))]),
    case(asserted, "assert_shapes", [(F, ("N", 2))]),
    case(asserted, "assert_shapes", [(F, (..., "M")), (I, ("M", 3))]),
    case(asserted, "assert_proper_iterable", [1]),
    case(asserted, "assert_proper_iterable", "text"),
    case(asserted, "Assert", True, [F]),
    case(asserted, "Assert", False, [F]),
    case("debugging.check_numerics", F, "finite"),
    case("debugging.check_numerics", np.array([1.0, np.nan], np.float32), "finite"),
    case("debugging.check_numerics", np.array([1.0, np.inf], np.float32), "finite"),
    case("debugging.assert_all_finite", np.array([1.0, np.inf], np.float32), "finite"),
    case("debugging.is_numeric_tensor", F),
]
