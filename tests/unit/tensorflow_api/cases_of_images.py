"""Functions of images."""

import io

import numpy as np
from compared_cases import case

RNG = np.random.default_rng(7)
RGB = RNG.random((5, 7, 3), np.float32)
GRAY = RNG.random((4, 6, 1), np.float32)
BATCH = RNG.random((2, 5, 4, 3), np.float32)
BYTES = RNG.integers(0, 256, (5, 7, 3), np.uint8)
WIDE = RNG.random((9, 13, 2), np.float32)
LARGE = RNG.random((2, 13, 12, 3), np.float32)
FINE = np.linspace(0.1, 0.9, 180 * 190, dtype=np.float32).reshape(1, 180, 190, 1)
ODD = np.array(
    [[[0.0, 0.0, 0.0], [1.0, 1.0, 1.0], [0.5, 0.5, 0.2], [0.2, 0.5, 0.5], [-0.5, 0.2, 1.5]]],
    np.float32,
)
BOXES = np.array(
    [
        [0.0, 0.0, 1.0, 1.0],
        [0.0, 0.1, 1.0, 1.1],
        [0.0, -0.1, 1.0, 0.9],
        [0.0, 10.0, 1.0, 11.0],
        [1.0, 10.1, 0.0, 11.1],
        [0.0, 100.0, 1.0, 101.0],
    ],
    np.float32,
)
SCORES = np.array([0.9, 0.75, 0.6, 0.95, 0.5, 0.3], np.float32)
UNIT = np.clip(
    np.sort(
        RNG.random((2, 6, 1, 4)).astype(np.float32) * np.array([0.6, 0.6, 1.2, 1.2], np.float32), -1
    ),
    0,
    1,
)
CLASSES = RNG.random((2, 6, 2)).astype(np.float32)
METHODS = (
    "bilinear",
    "nearest",
    "bicubic",
    "area",
    "lanczos3",
    "lanczos5",
    "gaussian",
    "mitchellcubic",
)


def png(array):
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(array.squeeze()).save(file, "PNG")
    return file.getvalue()


PNG, GRAY_PNG = png(BYTES), png(BYTES[..., :1])
ALPHA_PNG = png(np.concatenate([BYTES, BYTES[..., :1]], -1))

CASES = [
    *(
        case("image.resize", WIDE, [4, 20], method, gradient=method not in ("area", "nearest"))
        for method in METHODS
    ),
    *(
        case(
            "image.resize",
            WIDE,
            [3, 5],
            method,
            antialias=True,
            gradient=method not in ("area", "nearest"),
        )
        for method in METHODS
    ),
    *(case("image.resize", BYTES, [11, 3], method) for method in METHODS),
    case("image.resize", BATCH, [5, 4]),
    case("image.resize", BATCH, [10, 9], preserve_aspect_ratio=True),
    case("image.resize", WIDE, [7, 7], "bicubic", True, True),
    case("image.resize", RGB, [0, 3]),
    case("image.resize", RGB, [3]),
    case("image.resize", RGB, [3, 3], "cubic"),
    case("image.resize", RGB[0], [3, 3]),
    case("image.resize", np.zeros((0, 4, 4, 3), np.float32), [2, 2], "nearest"),
    case("image.resize_with_pad", RGB, 8, 8),
    case("image.resize_with_pad", BATCH, 3, 9, "nearest"),
    case("image.resize_with_pad", RGB, 0, 8),
    case("image.resize_with_crop_or_pad", RGB, 8, 4, gradient=True),
    case("image.resize_with_crop_or_pad", BATCH, 2, 7),
    case("image.resize_with_crop_or_pad", RGB, 3, -1),
    case("image.flip_left_right", RGB, gradient=True),
    case("image.flip_left_right", BATCH),
    case("image.flip_left_right", RGB[0]),
    case("image.flip_up_down", RGB, gradient=True),
    case("image.flip_up_down", BATCH),
    case("image.transpose", RGB),
    case("image.transpose", BATCH),
    *(case("image.rot90", RGB, k) for k in (1, 2, 3, 4, -1)),
    case("image.rot90", BATCH, k=3),
    case("image.central_crop", RGB, 0.5, gradient=True),
    case("image.central_crop", BATCH, 0.3),
    case("image.central_crop", RGB, 1.0),
    case("image.central_crop", RGB, 0.0),
    case("image.crop_to_bounding_box", RGB, 1, 2, 3, 4, gradient=True),
    case("image.crop_to_bounding_box", BATCH, 0, 0, 5, 4),
    case("image.crop_to_bounding_box", RGB, 1, 2, 5, 4),
    case("image.crop_to_bounding_box", RGB, -1, 2, 2, 4),
    case("image.pad_to_bounding_box", RGB, 1, 2, 8, 9, gradient=True),
    case("image.pad_to_bounding_box", BATCH, 0, 1, 5, 6),
    case("image.pad_to_bounding_box", RGB, 4, 2, 8, 9),
    case(
        "image.extract_patches",
        BATCH,
        [1, 3, 2, 1],
        [1, 2, 1, 1],
        [1, 1, 1, 1],
        "VALID",
        gradient=True,
    ),
    case("image.extract_patches", BATCH, [1, 3, 2, 1], [1, 2, 2, 1], [1, 1, 2, 1], "SAME"),
    case("image.extract_patches", BATCH, [1, 9, 9, 1], [1, 1, 1, 1], [1, 1, 1, 1], "VALID"),
    case(
        "image.crop_and_resize",
        BATCH,
        [[0.0, 0.0, 1.0, 1.0], [0.2, 0.1, 0.8, 1.2], [0.9, 0.1, 0.1, 0.6]],
        [0, 1, 1],
        [3, 4],
        gradient=True,
    ),
    case(
        "image.crop_and_resize", BATCH, [[0.1, 0.0, 0.7, 1.0]], [1], [1, 1], extrapolation_value=2.0
    ),
    case("image.crop_and_resize", BATCH, [[0.13, 0.2, 0.71, 0.9]], [1], [3, 3], "nearest"),
    case("image.crop_and_resize", BATCH, [[0.1, 0.0, 0.7, 1.0]], [2], [1, 1]),
    *(
        case("image.convert_image_dtype", BYTES, dtype)
        for dtype in ("float32", "float16", "uint16", "int8", "int32", "uint8")
    ),
    *(
        case("image.convert_image_dtype", RGB, dtype)
        for dtype in ("uint8", "uint16", "int16", "float16")
    ),
    case("image.convert_image_dtype", ODD, "uint8", saturate=True),
    case("image.convert_image_dtype", BYTES.astype(np.uint16) * 257, "uint8"),
    case("image.convert_image_dtype", RGB, "bool"),
    case("image.adjust_brightness", RGB, 0.3, gradient=True),
    case("image.adjust_brightness", BYTES, -0.2),
    case("image.adjust_brightness", RGB.astype(np.float16), 0.25, rtol=2e-3),
    case("image.adjust_contrast", RGB, 2.0),
    case("image.adjust_contrast", BATCH, 0.5),
    case("image.adjust_contrast", BYTES, 1.7),
    case("image.adjust_contrast", RGB[0], 1.7),
    case("image.adjust_gamma", RGB, 0.5, 2.0, gradient=True),
    case("image.adjust_gamma", BYTES, 2),
    case("image.adjust_gamma", RGB, -1),
    *(case("image.adjust_hue", RGB, delta) for delta in (0.1, -0.4, 0.99)),
    case("image.adjust_hue", BYTES, 0.3),
    case("image.adjust_hue", ODD, 0.2),
    case("image.adjust_hue", RGB, 1.5),
    case("image.adjust_hue", GRAY, 0.5),
    case("image.adjust_saturation", RGB, 0.5),
    case("image.adjust_saturation", BATCH, 3.0),
    case("image.adjust_saturation", BYTES, 1.5),
    case("image.adjust_saturation", ODD[:, :4], 0.7),
    case("image.per_image_standardization", RGB, gradient=True),
    case("image.per_image_standardization", BYTES),
    case("image.per_image_standardization", BATCH),
    case("image.per_image_standardization", np.ones((2, 2, 1), np.float32)),
    case("image.rgb_to_grayscale", RGB, gradient=True),
    case("image.rgb_to_grayscale", BYTES),
    case("image.rgb_to_grayscale", GRAY),
    case("image.grayscale_to_rgb", GRAY, gradient=True),
    case("image.grayscale_to_rgb", RGB),
    case("image.rgb_to_hsv", RGB),
    case("image.rgb_to_hsv", ODD),
    case("image.rgb_to_hsv", BYTES),
    case("image.hsv_to_rgb", RGB),
    *(
        case(f"image.{name}", RGB, gradient=True)
        for name in ("rgb_to_yiq", "yiq_to_rgb", "rgb_to_yuv", "yuv_to_rgb")
    ),
    case("image.total_variation", RGB, gradient=True),
    case("image.total_variation", BATCH),
    case("image.image_gradients", BATCH, gradient=True),
    case("image.image_gradients", RGB),
    case("image.sobel_edges", BATCH, gradient=True),
    case("image.psnr", RGB, RGB * 0.9, 1.0, gradient=True),
    case("image.psnr", BYTES, BYTES // 2, 255),
    case("image.psnr", RGB, GRAY, 1.0),
    case("image.ssim", LARGE, LARGE[::-1].copy(), 1.0, gradient=True, rtol=1e-4),
    case("image.ssim", LARGE, LARGE * 0.5, 1.0, filter_size=5, return_index_map=True, rtol=1e-4),
    case("image.ssim", RGB, RGB, 1.0),
    case("image.ssim_multiscale", FINE, FINE * 0.75, 1.0, gradient=True, rtol=1e-4),
    case(
        "image.ssim_multiscale",
        LARGE,
        LARGE[:, ::-1].copy(),
        1.0,
        [0.5, 0.25],
        filter_size=5,
        rtol=1e-4,
    ),
    case("image.ssim_multiscale", LARGE, LARGE, 1.0),
    case(
        "image.ssim_multiscale", BYTES, BYTES // 2, 255, [0.5, 0.5], 3, 0.7, 0.02, 0.05, rtol=1e-4
    ),
    case("image.non_max_suppression", BOXES, SCORES, 3),
    case("image.non_max_suppression", BOXES, SCORES, 6, 0.9),
    case("image.non_max_suppression", BOXES, SCORES, 6, 0.5, 0.7),
    case("image.non_max_suppression", BOXES, SCORES, 2, 0.0),
    case("image.non_max_suppression", BOXES[:0], SCORES[:0], 2),
    case("image.non_max_suppression", BOXES, SCORES[:2], 2),
    case("image.non_max_suppression_with_scores", BOXES, SCORES, 6),
    case("image.non_max_suppression_with_scores", BOXES, SCORES, 6, 1.0, 0.2, 0.5),
    case("image.combined_non_max_suppression", UNIT, CLASSES, 3, 5),
    case("image.combined_non_max_suppression", UNIT, CLASSES, 2, 10, 0.3, 0.4),
    case("image.combined_non_max_suppression", UNIT, CLASSES, 2, 10, pad_per_class=True),
    case(
        "image.draw_bounding_boxes",
        np.zeros((1, 8, 9, 3), np.float32),
        np.array([[[0.1, 0.2, 0.8, 0.7], [0.4, 0.0, 1.0, 0.5]]], np.float32),
        None,
    ),
    case(
        "image.draw_bounding_boxes",
        np.zeros((1, 8, 9, 3), np.float32),
        np.array([[[0.1, 0.2, 0.8, 0.7]]], np.float32),
        [[0.3, 0.6, 0.9]],
    ),
    case("io.decode_png", PNG),
    case("io.decode_png", PNG, 1),
    case("io.decode_png", PNG, 4),
    case("io.decode_png", PNG, dtype="uint16"),
    case("io.decode_png", GRAY_PNG),
    case("io.decode_png", GRAY_PNG, channels=3),
    case("io.decode_png", ALPHA_PNG),
    case("io.decode_png", ALPHA_PNG, channels=3),
    case("io.decode_png", PNG[:40]),
    case("io.decode_png", b""),
    case("io.decode_image", PNG),
    case("io.decode_image", GRAY_PNG, channels=3, dtype="float32"),
    case("io.decode_image", b"no image"),
    case("io.decode_jpeg", PNG),
    case("io.is_jpeg", PNG),
    case("io.is_jpeg", b"\xff\xd8\xff\xe0"),
    case("io.encode_jpeg", RGB),
    case("io.encode_png", RGB),
    case("image.adjust_jpeg_quality", LARGE[0], 50, rtol=0.02),
]
