"""Decodes and encodes images on the host with Pillow, which is imported on first use."""

from __future__ import annotations

import io
import warnings
from typing import Any

import numpy as np

from stratagem._src.core.errors import InvalidArgumentError, MissingExtraError
from stratagem._src.core.extras import install_hint
from stratagem._src.core.types import ArrayLike, DTypeLike, IntegerLike, ShapeLike, StringLike
from stratagem._src.tensorflow_api.conversion import as_dtype, concrete, integer, integers, strings
from stratagem._src.tensorflow_api.host_tensor import HostTensor
from stratagem._src.tensorflow_api.image_color import convert_image_dtype

__all__ = [
    "adjust_jpeg_quality",
    "decode_and_crop_jpeg",
    "decode_bmp",
    "decode_gif",
    "decode_image",
    "decode_jpeg",
    "decode_png",
    "encode_jpeg",
    "encode_png",
    "extract_jpeg_shape",
    "is_jpeg",
]


def decode_jpeg(
    contents: StringLike,
    channels: int = 0,
    ratio: int = 1,
    fancy_upscaling: bool = True,
    try_recover_truncated: bool = False,
    acceptable_fraction: float = 1,
    dct_method: str = "",
    name: str | None = None,
) -> HostTensor:
    """Returns the pixels of a JPEG file, as ``uint8`` of height, width and channels.

    Differs from TensorFlow: ``fancy_upscaling=False``, ``try_recover_truncated`` and ``dct_method`` raise,
    because Pillow does not support them.

    >>> decode_jpeg(encode_jpeg(np.zeros((2, 3, 1), np.uint8))).shape
    (2, 3, 1)

    Args:
        contents: The file's bytes. A PNG, or a GIF with one frame, also works.
        channels: 1 for grayscale, 3 for RGB, 0 for the channels of the file.
        ratio: The factor by which decoding downscales: 1, 2, 4 or 8.
        fancy_upscaling: Must be true.
        try_recover_truncated: Must be false.
        acceptable_fraction: Ignored.
        dct_method: Must be empty.
        name: Ignored.
    """
    _refuse("decode_jpeg", fancy_upscaling, try_recover_truncated, dct_method)
    if ratio not in (1, 2, 4, 8):
        raise InvalidArgumentError(f"ratio of tf.io.decode_jpeg must be 1, 2, 4 or 8, got {ratio}.")
    data = _bytes("io.decode_jpeg", contents)
    return _decoded("io.decode_jpeg", data, channels, (0, 1, 3), np.uint8, ratio)


def decode_png(
    contents: StringLike, channels: int = 0, dtype: DTypeLike = np.uint8, name: str | None = None
) -> HostTensor:
    """Returns the pixels of a PNG file, as ``uint8`` or ``uint16`` of height, width and channels.

    >>> decode_png(encode_png(np.zeros((2, 3, 1), np.uint8))).shape
    (2, 3, 1)

    Args:
        contents: The file's bytes. A JPEG, or a GIF with one frame, also works.
        channels: 1 for grayscale, 2 with alpha, 3 for RGB, 4 with alpha, 0 for the channels of the file.
        dtype: ``uint8`` or ``uint16``.
        name: Ignored.
    """
    if as_dtype(dtype) not in (np.uint8, np.uint16):
        raise InvalidArgumentError(
            f"dtype of tf.io.decode_png must be uint8 or uint16, got {dtype}."
        )
    data = _bytes("io.decode_png", contents)
    return _decoded("io.decode_png", data, channels, (0, 1, 2, 3, 4), as_dtype(dtype))


def decode_bmp(contents: StringLike, channels: int = 0, name: str | None = None) -> HostTensor:
    """Returns the pixels of a BMP file, as ``uint8`` of height, width and channels.

    >>> decode_bmp(b"nothing")
    Traceback (most recent call last):
    ...
    stratagem.errors.InvalidArgumentError: tf.io.decode_bmp needs a BMP, got b'nothing'.
    """
    data = _bytes("io.decode_bmp", contents)
    if not data.startswith(b"BM"):
        raise InvalidArgumentError(f"tf.io.decode_bmp needs a BMP, got {data[:8]!r}.")
    return _decoded("io.decode_bmp", data, channels, (0, 1, 3, 4), np.uint8)


def decode_gif(contents: StringLike, name: str | None = None) -> HostTensor:
    """Returns the pixels of a GIF file, as ``uint8`` of frames, height, width and 3 channels.

    >>> decode_gif(b"nothing")
    Traceback (most recent call last):
    ...
    stratagem.errors.InvalidArgumentError: tf.io.decode_gif needs a GIF, got b'nothing'.
    """
    data = _bytes("io.decode_gif", contents)
    if not data.startswith(b"GIF"):
        raise InvalidArgumentError(f"tf.io.decode_gif needs a GIF, got {data[:8]!r}.")
    return HostTensor.of(_frames("io.decode_gif", data))


def decode_image(
    contents: StringLike,
    channels: int | None = None,
    dtype: DTypeLike = np.uint8,
    name: str | None = None,
    expand_animations: bool = True,
) -> HostTensor:
    """Returns the pixels of a JPEG, PNG, GIF or BMP file.

    >>> decode_image(encode_png(np.zeros((2, 3, 1), np.uint8)), channels=3).shape
    (2, 3, 3)

    Args:
        contents: The file's bytes.
        channels: As in ``decode_jpeg`` and ``decode_png``.
        dtype: The dtype of the result. Values are scaled to it.
        name: Ignored.
        expand_animations: Whether a GIF has a dimension of frames; else only its first frame is returned.
    """
    wanted = as_dtype(dtype)
    data = _bytes("io.decode_image", contents)
    count = 0 if channels is None else channels
    if data.startswith(b"GIF"):
        if count not in (0, 3):
            raise InvalidArgumentError(f"channels of a GIF must be 0 or 3, got {channels}.")
        frames = _frames("io.decode_image", data)
        return convert_image_dtype(
            HostTensor.of(frames if expand_animations else frames[0]), wanted
        )
    own = np.uint16 if wanted == np.uint16 and data.startswith(b"\x89PNG") else np.uint8
    found = _decoded("io.decode_image", data, count, (0, 1, 3, 4), own)
    return convert_image_dtype(found, wanted)


def decode_and_crop_jpeg(
    contents: StringLike,
    crop_window: ShapeLike,
    channels: int = 0,
    ratio: int = 1,
    fancy_upscaling: bool = True,
    try_recover_truncated: bool = False,
    acceptable_fraction: float = 1,
    dct_method: str = "",
    name: str | None = None,
) -> HostTensor:
    """Returns the pixels of a JPEG file in a window ``[top, left, height, width]``.

    >>> decode_and_crop_jpeg(encode_jpeg(np.zeros((4, 4, 3), np.uint8)), [1, 0, 2, 3]).shape
    (2, 3, 3)
    """
    full = decode_jpeg(
        contents,
        channels,
        ratio,
        fancy_upscaling,
        try_recover_truncated,
        acceptable_fraction,
        dct_method,
    )
    window = integers("io.decode_and_crop_jpeg", "crop_window", crop_window)
    top, left, height, width = window
    rows, columns = full.shape[:2]
    if min(window) < 0 or not height or not width or top + height > rows or left + width > columns:
        raise InvalidArgumentError(
            f"crop_window of tf.io.decode_and_crop_jpeg must be within {rows} rows and {columns} columns, "
            f"got {window}."
        )
    return HostTensor.of(full[top : top + height, left : left + width])


def encode_png(image: ArrayLike, compression: int = -1, name: str | None = None) -> HostTensor:
    """Encodes images of ``uint8`` or ``uint16`` as PNG files.

    >>> encode_png(np.zeros((2, 3, 1), np.uint8)).numpy()[:4]
    b'\\x89PNG'

    Args:
        image: Height, width and 1 to 4 channels. Leading dimensions give one file each.
        compression: From 0 (none) to 9 (best); -1 is the default of zlib.
        name: Ignored.
    """
    array = _pixels("encode_png", image, (np.uint8, np.uint16), (1, 2, 3, 4))
    if not -1 <= compression <= 9:
        raise InvalidArgumentError(f"compression must be in [-1, 9], got {compression}.")
    if array.dtype == np.uint16 and array.shape[-1] != 1:
        raise InvalidArgumentError(
            f"tf.io.encode_png supports uint16 with one channel only, got {array.shape[-1]} channels: a "
            "limit of Pillow. Convert the image to uint8: tf.image.convert_image_dtype(x, tf.uint8)."
        )
    files = np.empty(array.shape[:-3], np.object_)
    for index in np.ndindex(files.shape):
        options = {} if compression == -1 else {"compress_level": compression}
        files[index] = _saved(array[index], "PNG", **options)
    return HostTensor.of(files)


def encode_jpeg(
    image: ArrayLike,
    format: str = "",
    quality: int = 95,
    progressive: bool = False,
    optimize_size: bool = False,
    chroma_downsampling: bool = True,
    density_unit: str = "in",
    x_density: int = 300,
    y_density: int = 300,
    xmp_metadata: str = "",
    name: str | None = None,
) -> HostTensor:
    """Encodes an image of ``uint8`` as a JPEG file.

    >>> encode_jpeg(np.zeros((2, 3, 1), np.uint8)).numpy()[:2]
    b'\\xff\\xd8'

    Args:
        image: Height, width and 1 or 3 channels.
        format: ``""``, ``"grayscale"`` or ``"rgb"``; it must match the channels.
        quality: From 0 to 100.
        progressive: Whether to write a progressive JPEG.
        optimize_size: Whether to minimize the size of the file.
        chroma_downsampling: Whether to store colors at half the resolution.
        density_unit: ``"in"`` or ``"cm"``.
        x_density: Pixels per unit.
        y_density: Pixels per unit.
        xmp_metadata: XMP metadata to store.
        name: Ignored.
    """
    array = _pixels("encode_jpeg", image, (np.uint8,), (1, 3))
    if array.ndim != 3:
        raise InvalidArgumentError(f"tf.io.encode_jpeg takes one image, got shape {array.shape}.")
    if format not in ("", "grayscale", "rgb"):
        raise InvalidArgumentError(f"format must be '', 'grayscale' or 'rgb', got {format!r}.")
    if format and array.shape[-1] != (3 if format == "rgb" else 1):
        raise InvalidArgumentError(
            f"format {format!r} does not match the channels of an image of shape {array.shape}."
        )
    if not 0 <= quality <= 100:
        raise InvalidArgumentError(f"quality must be in [0, 100], got {quality}.")
    per_inch = 1.0 if density_unit == "in" else 2.54
    file = _saved(
        array,
        "JPEG",
        quality=quality,
        progressive=progressive,
        optimize=optimize_size,
        subsampling=2 if chroma_downsampling else 0,
        dpi=(round(x_density * per_inch), round(y_density * per_inch)),
        **({"xmp": xmp_metadata.encode()} if xmp_metadata else {}),
    )
    made = np.empty((), np.object_)
    made[()] = file
    return HostTensor.of(made)


def adjust_jpeg_quality(
    image: ArrayLike, jpeg_quality: IntegerLike, dct_method: str = "", name: str | None = None
) -> HostTensor:
    """Applies JPEG compression of a given quality to an image, on the host.

    >>> adjust_jpeg_quality(np.zeros((2, 3, 3), np.float32), 50).dtype
    dtype('float32')
    """
    _refuse("adjust_jpeg_quality", True, False, dct_method)
    array = _known("image.adjust_jpeg_quality", image)
    small = convert_image_dtype(array, np.uint8, saturate=True)
    quality = integer("image.adjust_jpeg_quality", "jpeg_quality", jpeg_quality)
    found = decode_jpeg(encode_jpeg(small, quality=quality), channels=array.shape[-1])
    return convert_image_dtype(found, array.dtype, saturate=True)


def is_jpeg(contents: StringLike, name: str | None = None) -> bool:
    """Returns whether bytes are a JPEG file.

    >>> is_jpeg(b"nothing")
    False
    """
    return _bytes("io.is_jpeg", contents).startswith(b"\xff\xd8\xff")


def extract_jpeg_shape(
    contents: StringLike, output_type: DTypeLike = np.int32, name: str | None = None
) -> HostTensor:
    """Returns the height, width and channels of a JPEG file, without decoding it.

    >>> extract_jpeg_shape(encode_jpeg(np.zeros((2, 3, 1), np.uint8)))
    HostTensor([2, 3, 1], dtype=int32)
    """
    data = _bytes("io.extract_jpeg_shape", contents)
    if not is_jpeg(data):
        raise InvalidArgumentError(f"tf.io.extract_jpeg_shape needs a JPEG, got {data[:8]!r}.")
    with _image("io.extract_jpeg_shape", data) as image:
        shape = [image.height, image.width, len(image.getbands())]
    return HostTensor.of(np.array(shape, as_dtype(output_type)))


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtraError(
            "Decoding and encoding images needs Pillow, which is not installed. "
            + install_hint("image")
        ) from None
    return Image


def _bytes(op: str, contents: StringLike) -> bytes:
    array = strings(op, contents)
    if array.ndim:
        raise InvalidArgumentError(f"tf.{op} takes the bytes of one file, got shape {array.shape}.")
    found: bytes = array.item()
    return found


def _refuse(op: str, fancy_upscaling: bool, recover: bool, dct_method: str) -> None:
    if not fancy_upscaling or recover or dct_method:
        raise InvalidArgumentError(
            f"tf.io.{op} decodes with Pillow, which does not support fancy_upscaling=False, "
            "try_recover_truncated and dct_method. Leave them at their defaults."
        )


def _image(op: str, data: bytes) -> Any:
    pillow = _pillow()
    try:
        with warnings.catch_warnings(action="ignore"):
            return pillow.open(io.BytesIO(data))
    except (OSError, SyntaxError, ValueError):
        raise InvalidArgumentError(
            f"tf.{op} needs the bytes of a JPEG, PNG, GIF or BMP file, got {len(data)} bytes that start "
            f"with {data[:8]!r}."
        ) from None


def _loaded(op: str, image: Any, data: bytes) -> None:
    try:
        image.load()
    except (OSError, SyntaxError, ValueError) as error:
        raise InvalidArgumentError(f"tf.{op} cannot decode {len(data)} bytes: {error}.") from None


def _decoded(
    op: str, data: bytes, channels: int, allowed: tuple[int, ...], dtype: DTypeLike, ratio: int = 1
) -> HostTensor:
    if channels not in allowed:
        raise InvalidArgumentError(f"channels of tf.{op} must be one of {allowed}, got {channels}.")
    if data.startswith(b"BM") and op not in ("io.decode_bmp", "io.decode_image"):
        raise InvalidArgumentError(
            f"tf.{op} does not decode BMP. Use tf.io.decode_bmp or tf.io.decode_image."
        )
    if data.startswith(b"GIF"):
        frames = _frames(op, data)
        if len(frames) != 1:
            raise InvalidArgumentError(
                f"tf.{op} takes a GIF with one frame, got {len(frames)}. Use tf.io.decode_gif."
            )
        return HostTensor.of(frames[0])
    with _image(op, data) as image:
        if image.format == "JPEG":
            size = (-(-image.width // ratio), -(-image.height // ratio))
            image.draft("L" if channels == 1 else None, size)
        _loaded(op, image, data)
        if image.mode == "P":
            image = image.convert("RGBA" if "transparency" in image.info else "RGB")
        elif image.mode in ("1", "CMYK", "YCbCr"):
            image = image.convert("L" if image.mode == "1" else "RGB")
        pixels = np.asarray(image)
    pixels = pixels[:, :, None] if pixels.ndim == 2 else pixels
    if pixels.dtype != np.uint8:  # 16-bit grayscale
        pixels = pixels.astype(np.uint16)
        pixels = pixels if dtype == np.uint16 else (pixels >> 8).astype(np.uint8)
    elif dtype == np.uint16:
        pixels = pixels.astype(np.uint16) * np.uint16(257)
    return HostTensor.of(_with_channels(pixels, channels) if channels else pixels)


def _with_channels(pixels: np.ndarray[Any, Any], wanted: int) -> np.ndarray[Any, Any]:
    """Converts between grayscale and RGB, with or without alpha, as libpng does."""
    colors = pixels[..., : 1 if pixels.shape[-1] < 3 else 3]
    alpha = pixels[..., -1:] if pixels.shape[-1] in (2, 4) else None
    if wanted >= 3 and colors.shape[-1] == 1:
        colors = np.repeat(colors, 3, -1)
    elif wanted < 3 and colors.shape[-1] == 3:
        weights = np.array([9798, 19235, 3735], np.uint32)
        gray = (colors.astype(np.uint32) @ weights) >> 15
        colors = gray[..., None].astype(pixels.dtype)
    if wanted in (1, 3):
        return colors
    if alpha is None:
        alpha = np.full_like(colors[..., :1], np.iinfo(pixels.dtype).max)
    return np.concatenate([colors, alpha], -1)


def _frames(op: str, data: bytes) -> np.ndarray[Any, Any]:
    with _image(op, data) as image:
        found = []
        for number in range(getattr(image, "n_frames", 1)):
            image.seek(number)
            _loaded(op, image, data)
            found.append(np.asarray(image.convert("RGB")))
    return np.stack(found)


def _known(op: str, image: ArrayLike) -> np.ndarray[Any, Any]:
    array = concrete(image)
    if array is None:
        raise InvalidArgumentError(
            f"tf.{op} runs on the host, got a traced image. Call it in Dataset.map or outside "
            "compiled code."
        )
    return array


def _pixels(
    op: str, image: ArrayLike, types: tuple[Any, ...], channels: tuple[int, ...]
) -> np.ndarray[Any, Any]:
    array = _known(f"io.{op}", image)
    if array.dtype not in types or array.ndim < 3 or array.shape[-1] not in channels:
        names = " or ".join(np.dtype(one).name for one in types)
        raise InvalidArgumentError(
            f"tf.io.{op} needs {names} of height, width and {channels} channels, got {array.dtype.name} of "
            f"shape {array.shape}."
        )
    return array


def _saved(array: np.ndarray[Any, Any], format: str, **options: Any) -> bytes:
    pixels = array[:, :, 0] if array.shape[-1] == 1 else array
    file = io.BytesIO()
    _pillow().fromarray(np.ascontiguousarray(pixels)).save(file, format, **options)
    return file.getvalue()
