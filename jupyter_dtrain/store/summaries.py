"""Values as TensorBoard's plug-ins for images, audio, histograms and text read them from event files.

TensorBoard's own functions for these need a whole framework, so its messages are filled in here. Its package must be
there.

Under failure: the functions raise what damaged data raises.
"""

from __future__ import annotations

import io
import struct
import wave
from collections.abc import Mapping
from typing import Any, Final

_HEADER: Final = struct.Struct(">II")
_AT: Final = 16
"""Where the header of a PNG file has its width and height."""
_COLOURS: Final = {0: 1, 2: 3, 3: 3, 4: 2, 6: 4}
"""Channels, by PNG's number for the kind of colours."""


def image(tag: str, data: bytes, mime: str, words: str) -> Any:
    """A PNG or JPEG file. ``words``: what is shown beside it."""
    from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata

    width, height, channels = 0, 0, 3  # TensorBoard looks for them in the file itself where they are 0
    if mime == "image/png" and len(data) > _AT + _HEADER.size + 2:
        width, height = _HEADER.unpack_from(data, _AT)
        channels = _COLOURS.get(data[_AT + _HEADER.size + 1], 3)
    found = Summary.Image(height=height, width=width, colorspace=channels, encoded_image_string=data)
    return Summary.Value(tag=tag, image=found, metadata=SummaryMetadata(summary_description=words))


def audio(tag: str, data: bytes, words: str) -> Any:
    """A WAV file."""
    from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata

    with wave.open(io.BytesIO(data)) as read:
        rate, channels, length = read.getframerate(), read.getnchannels(), read.getnframes()
    found = Summary.Audio(
        sample_rate=rate,
        num_channels=channels,
        length_frames=length,
        encoded_audio_string=data,
        content_type="audio/wav",
    )
    return Summary.Value(tag=tag, audio=found, metadata=SummaryMetadata(summary_description=words))


def histogram(tag: str, told: Mapping[str, Any]) -> Any:
    """A histogram, told as the store has it."""
    from tensorboard.compat.proto.histogram_pb2 import HistogramProto
    from tensorboard.compat.proto.summary_pb2 import Summary

    edges, counts = told["edges"], told["counts"]
    number = float(sum(counts))
    mean, deviation = told["mean"], told["deviation"]
    found = HistogramProto(
        min=told["lowest"],
        max=told["highest"],
        num=number,
        sum=mean * number,
        sum_squares=(deviation**2 + mean**2) * number,
        bucket_limit=edges[1:],  # the first one begins at the lowest value
        bucket=counts,
    )
    return Summary.Value(tag=tag, histo=found)


def text(tag: str, words: str) -> Any:
    """Text, which TensorBoard reads as Markdown."""
    from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.compat.proto.types_pb2 import DT_STRING

    found = TensorProto(dtype=DT_STRING, string_val=[words.encode("utf-8", "replace")])
    metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
    return Summary.Value(tag=tag, tensor=found, metadata=metadata)
