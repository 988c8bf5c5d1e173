"""Numbers of few bits, from their definitions: tables of the values of codes, and rounding to the nearest of them.

Every array is FP32, as the formats say, unless a name says otherwise."""

import numpy as np

F32 = np.float32


def _float8(n_mantissa_bits, bias):
    """All codes as if none of them were special."""
    values, steps = np.zeros(256, F32), 1 << n_mantissa_bits
    for code in range(128):
        exponent, mantissa = code // steps, code % steps / steps
        values[code] = mantissa * 2.0 ** (1 - bias) if exponent == 0 else (1 + mantissa) * 2.0 ** (exponent - bias)
    values[128:] = -values[:128]
    return values


def _with(values, special):
    for code, value in special.items():
        values[code] = value
    return values


_NAN = F32(np.nan)
E4M3 = _with(_float8(3, 7), {0x7F: _NAN, 0xFF: -_NAN})
_IEEE = {sign | code: np.copysign(_NAN, 64 - sign) for sign in (0, 128) for code in (0x7D, 0x7E, 0x7F)}
# By dtype. Kinds without a minus zero have the only NaN there.
FLOAT8 = {
    "F8_E4M3": E4M3,
    "F8_E5M2": _with(_float8(2, 15), {**_IEEE, 0x7C: np.inf, 0xFC: -np.inf}),
    "F8_E4M3FNUZ": _with(_float8(3, 8), {0x80: -_NAN}),
    "F8_E5M2FNUZ": _with(_float8(2, 16), {0x80: -_NAN}),
}
NOT_FINITE = {dtype: np.flatnonzero(~np.isfinite(values)).tolist() for dtype, values in FLOAT8.items()}
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], F32)


def e8m0(codes):
    """2^(b-127); 255 is NaN. 0 is a subnormal F32."""
    codes = np.asarray(codes, np.uint8)
    return np.where(codes == 255, F32(np.nan), np.exp2(codes.astype(np.float64) - 127).astype(F32))


def bf16(data):
    """BF16 words, widened."""
    return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(F32)


def to_bf16(values):
    """BF16 words: to nearest, ties to even; a NaN is 0x7FC0 with its sign."""
    bits = np.ascontiguousarray(values, F32).view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    quiet = ((bits >> 16) & 0x8000 | 0x7FC0).astype(np.uint16)
    return np.where(np.isnan(values), quiet.reshape(np.shape(values)), rounded.reshape(np.shape(values)))


def round_bf16(values):
    """The nearest BF16, as F32."""
    return bf16(to_bf16(values).tobytes()).reshape(np.shape(values))


def to_f16(values):
    """F16 words: to nearest, ties to even; beyond the largest they are infinite."""
    with np.errstate(over="ignore", under="ignore"):
        return np.asarray(values, F32).astype("<f2").view("<u2")


def _nearest(values, n_mantissa_bits, least_exponent, limit):
    """To the nearest multiple of a step, which is a power of two: of the value's exponent, or the least one. Ties go to
    the even multiple, which is the even code. Magnitudes beyond the limit are the limit."""
    magnitudes = np.minimum(np.abs(np.asarray(values, F32)), F32(limit))
    exponents = (magnitudes.view(np.uint32) >> 23).astype(np.int32) - 127
    steps = np.maximum(exponents, least_exponent) - n_mantissa_bits
    steps = ((steps + 127) << 23).view(F32)
    return np.copysign(np.rint(magnitudes / steps) * steps, values)


def round_e4m3(values):
    """To the nearest E4M3, ties to even; what is beyond 448 is 448."""
    return _nearest(values, 3, -6, 448)


def round_e2m1(values):
    """To the nearest E2M1, ties to even; what is beyond 6 is 6."""
    return _nearest(values, 1, 0, 6)


def round_whole(values, low, high):
    """To the nearest whole number, ties to even, within both limits."""
    return np.clip(np.rint(values), low, high).astype(F32)


def power_of_two_above(values):
    """Positive F32 rounded up to powers of two."""
    mantissa, exponent = np.frexp(np.asarray(values, np.float64))
    return np.where(mantissa == 0.5, np.exp2(exponent - 1.0), np.exp2(exponent * 1.0)).astype(F32)


def is_power_of_two(values):
    """Whether each is one, subnormals included."""
    return np.frexp(np.asarray(values, np.float64))[0] == 0.5


def e4m3_codes(values):
    """The codes, 0 to 126, of positive values that E4M3 has."""
    return np.searchsorted(E4M3[:127], values).astype(np.int64)
