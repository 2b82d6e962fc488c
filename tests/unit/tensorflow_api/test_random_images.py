"""Random images: new ones in each call, the same for the same stateless seed, on the host and compiled."""

import numpy as np
import pytest

import stratagem as tf

IMAGE = np.random.default_rng(0).random((8, 8, 3), np.float32)
STATEFUL = {
    "random_brightness": (0.3,),
    "random_contrast": (0.5, 1.5),
    "random_crop": ([4, 4, 3],),
    "random_hue": (0.3,),
    "random_saturation": (0.5, 1.5),
}


def call(name, image, *more):
    return np.asarray(getattr(tf.image, name)(image, *STATEFUL[name], *more))


@pytest.mark.parametrize("name", STATEFUL)
def test_each_call_is_another(name):
    assert len({call(name, IMAGE).tobytes() for _ in range(4)}) > 1


@pytest.mark.parametrize("name", STATEFUL)
def test_stateless_is_the_same_on_host_and_device(name):
    arguments = (*STATEFUL[name], (1, 2))
    function = getattr(tf.image, f"stateless_{name}")
    found = function(IMAGE, *arguments)
    np.testing.assert_allclose(found, function(tf.constant(IMAGE), *arguments), atol=1e-6)
    compiled = tf.function(lambda image: function(image, *arguments))
    np.testing.assert_allclose(found, compiled(tf.constant(IMAGE)), atol=1e-6)


@pytest.mark.parametrize("name", ["random_flip_left_right", "random_flip_up_down"])
def test_flips_are_flips(name):
    flipped = getattr(tf.image, name.removeprefix("random_"))(IMAGE)
    seen = {getattr(tf.image, name)(IMAGE).tobytes() for _ in range(30)}
    assert seen == {IMAGE.tobytes(), np.ascontiguousarray(flipped).tobytes()}
    batch = getattr(tf.image, name)(np.stack([IMAGE] * 30))
    assert {one.tobytes() for one in batch} == seen


def test_random_bounds_are_checked():
    for name, arguments in (
        ("random_brightness", (-1,)),
        ("random_hue", (0.6,)),
        ("random_contrast", (1.0, 0.5)),
        ("random_crop", ([9, 8, 3],)),
        ("random_jpeg_quality", (90, 80)),
    ):
        with pytest.raises(ValueError, match=r"tf\.image"):
            getattr(tf.image, name)(IMAGE, *arguments)


def test_distorted_boxes_show_the_object():
    objects = np.array([[[0.2, 0.2, 0.4, 0.4]]], np.float32)
    for seed in range(20):
        begin, size, box = tf.image.stateless_sample_distorted_bounding_box(
            [50, 60, 3], objects, (seed, 1), min_object_covered=0.5, area_range=(0.1, 0.8)
        )
        assert tf.slice(np.zeros((50, 60, 3), np.float32), begin, size).shape[2] == 3
        top, left, bottom, right = box[0, 0].tolist()
        common = max(min(bottom, 0.4) - max(top, 0.2), 0) * max(min(right, 0.4) - max(left, 0.2), 0)
        assert common >= 0.5 * 0.04 - 1e-6
        assert 0.1 - 1e-3 <= (bottom - top) * (right - left) <= 0.8 + 1e-3
    with pytest.raises(ValueError, match="bounding box"):
        tf.image.sample_distorted_bounding_box([8, 8, 3], np.zeros((1, 0, 4), np.float32))
