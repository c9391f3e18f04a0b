"""Numbers as people write them: sizes in bytes, and what C's integers hold."""
import operator
import re
from typing import Any, Optional

_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
          "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40,
          "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}


def size(value: Any, what: str = "the size") -> int:
    """Bytes: a number, or a text such as "2GiB", "512M" (powers of 1024) or "1.5GB" (of 1000)."""
    if isinstance(value, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", value.lower())
        if not match or match.group(2) not in _UNITS:
            raise ValueError("%s is %r, and not a number of bytes such as 2GiB" % (what, value))
        return int(float(match.group(1)) * _UNITS[match.group(2)]) if "." in match.group(1) else \
            int(match.group(1)) * _UNITS[match.group(2)]
    return uint(value, what, 64)


def uint(value: Any, what: str, bits: int = 32) -> int:
    """A number that an unsigned integer of C can hold; OverflowError rather than another one."""
    number = value
    if type(value) is not int:
        try:
            number = operator.index(value)
        except TypeError:
            raise TypeError("%s is a whole number, not %s"
                            % (what, type(value).__name__)) from None
    if not 0 <= number < 1 << bits:
        raise OverflowError("%s is %d, and not 0 to 2^%d - 1" % (what, number, bits))
    return number


def int32(value: Any, what: str) -> int:
    """A number that int32_t can hold."""
    number = operator.index(value)
    if not -(1 << 31) <= number < 1 << 31:
        raise OverflowError("%s is %d, which 32 bits do not hold" % (what, number))
    return number


def below(value: Any, end: int, what: str) -> int:
    """An index of 0 to end - 1, as a number of Python's own: NumPy's wrap around."""
    number = operator.index(value)
    if not 0 <= number < end:
        raise IndexError("%s %d of %d" % (what, number, end))
    return number


def text(value: Any, what: str) -> bytes:
    """A text for C, where a NUL would end it early."""
    if not isinstance(value, str):
        raise TypeError("%s is a text, not %s" % (what, type(value).__name__))
    return whole(value.encode(), what)


def whole(value: bytes, what: str) -> bytes:
    """The bytes of a text, refused if C would see only part of them."""
    if b"\0" in value:
        raise ValueError("%s is %r: a NUL would end it early" % (what, value))
    return value


def stream(value: Any) -> Optional[int]:
    """The address of a CUDA stream: None, a number, or an object of torch or CUDA Python."""
    if value is None or isinstance(value, int):
        return uint(value or 0, "a stream", 64) or None
    if hasattr(value, "cuda_stream"):  # torch.cuda.Stream
        return value.cuda_stream or None
    if hasattr(value, "__cuda_stream__"):
        return value.__cuda_stream__()[1] or None
    raise TypeError("a stream is None, its address, or a CUDA stream, not %s"
                    % type(value).__name__)
