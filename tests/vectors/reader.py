"""Reads messages as ``docs/wire-format.md`` describes them, with nothing but the standard library.

This is what somebody would write in another language: it shares no code with the library, knows bits and
numbers instead of arrays, and prefers the words of the description to speed.

    read(data)      the frames of a message, each a dict of what it means
    ValueError      whatever the description does not allow

A message is bytes; a word is a little-endian u64; bit b of some words is bit b of the integer they form.
"""

import json
import struct
import zlib
from itertools import pairwise

HEADER = struct.Struct("<4sBBBB Q 40s QQQQ Q III")
CALL = struct.Struct("<BBBBIQ24s")
CRC = struct.Struct("<I")
HEADER_BYTES = HEADER.size + CRC.size

FORMATS = {1: "coo", 2: "dense", 3: "abort", 4: "elias_fano", 5: "bitmap", 6: "tiles"}
DTYPES = {0: "none", 1: "float32", 2: "float64", 3: "float16", 4: "bfloat16", 5: "int32", 6: "int64"}
PRECISIONS = {0: "exact", 1: "float16", 2: "bfloat16", 3: "qsgd2", 4: "qsgd4", 5: "qsgd8", 6: "two_levels"}
BITS = {"qsgd2": 2, "qsgd4": 4, "qsgd8": 8, "two_levels": 2}
BUCKET_BYTES = {"qsgd2": 4, "qsgd4": 4, "qsgd8": 4, "two_levels": 8}
OPERATIONS = [
    "none",
    "rendezvous",
    "allreduce",
    "allgather",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "barrier",
    "allreduce_topk",
]
OPS = ["none", "sum", "avg", "max", "min"]
NUMBERS = {"float32": "f", "float64": "d", "float16": "e", "bfloat16": "H", "int32": "i", "int64": "q"}
NOT_A_LIST = 2**32 - 1


def read(data):
    """What the frames of one message mean."""
    frames, following = [], None
    while following != 0:
        frame, data = read_frame(data)
        if frames:
            require(frame["following"] == following - 1, "a list counts down to 0")
            require(
                all(frame[name] == frames[0][name] for name in ("collective", "call")), "one list, one call"
            )
        frames.append(frame)
        following = frame["following"] or 0
    require(not data, "nothing follows a message")
    return frames


def read_frame(data):
    """What the first frame means, and the bytes behind it."""
    head = header(data[:HEADER_BYTES])
    frame = {name: head[name] for name in ("format", "dtype", "precision", "collective", "call", "following")}
    frame |= {name: head[name] for name in ("length", "start", "stop")}
    index_bytes, value_bytes = part_sizes(head)
    index_part, rest = taken(data[HEADER_BYTES:], index_bytes)
    value_part, rest = taken(rest, value_bytes)
    require(checksum(value_part, checksum(index_part, 0)) == head["checksum"], "the checksum of the payload")
    if head["format"] == "abort":
        return frame | {"error": json.loads(value_part)}, rest
    indices = READ_INDICES[head["format"]](index_part, head)
    check_indices(indices, head)
    return frame | {"indices": indices, "values": read_values(value_part, head)}, rest


def require(holds, what):
    if not holds:
        raise ValueError(f"wrong: {what}")


def taken(data, size):
    """The first ``size`` bytes, and what follows the zeros that fill them up to a multiple of 8."""
    end = size + -size % 8
    require(len(data) >= end, "a frame is complete")
    require(not any(data[size:end]), "padding is zeros")
    return data[:size], data[end:]


# -- header --------------------------------------------------------------------------------------


def header(data):
    require(len(data) == HEADER_BYTES, "a header is complete")
    fields = data[: HEADER.size]
    magic, version, form, dtype, precision, collective, call, *numbers = HEADER.unpack(fields)
    require(magic == b"SPWR", "the magic number")
    require(version == 3, "the version")
    require(CRC.unpack(data[HEADER.size :]) == (zlib.crc32(fields),), "the CRC of the header")
    require(form in FORMATS and dtype in DTYPES and precision in PRECISIONS, "known codes")
    names = ("length", "start", "stop", "nnz", "checksum", "tiles", "bucket", "following")
    head = dict(zip(names, numbers, strict=True), collective=collective, call=read_call(call))
    head |= {"format": FORMATS[form], "dtype": DTYPES[dtype], "precision": PRECISIONS[precision]}
    head["span"] = head["stop"] - head["start"]
    if head["following"] == NOT_A_LIST:
        head["following"] = None
    check_header(head)
    return head


def check_header(head):
    form, dtype, precision, nnz, span = (head[n] for n in ("format", "dtype", "precision", "nnz", "span"))
    require(head["start"] <= head["stop"] <= head["length"] < 2**63, "a range within the vector")
    require(nnz == span if form in ("dense", "abort") else nnz <= span, "as many entries as fit")
    require((form == "abort") == (dtype == "none"), "an abort has no values, all else has")
    require(form != "abort" or head["following"] is None, "an abort is not in a list")
    require(precision == "exact" or dtype in ("float32", "float64"), "only float32 and float64 are narrowed")
    require((head["bucket"] > 0) == (precision in BITS), "buckets with QSGD and two levels only")
    require(form == "tiles" or head["tiles"] == 0, "a number of tiles with tiles only")


def read_call(data):
    operation, op, dtype, precision, root, length, algorithm = CALL.unpack(data)
    require(operation < len(OPERATIONS) and op < len(OPS), "known codes of a call")
    require(dtype in DTYPES and precision in PRECISIONS, "known codes of a call")
    require(PRECISIONS[precision] != "two_levels", "two levels are of a frame, not of a call")
    return {
        "operation": OPERATIONS[operation],
        "op": OPS[op],
        "dtype": DTYPES[dtype],
        "precision": PRECISIONS[precision],
        "root": root,
        "length": length,
        "algorithm": algorithm.rstrip(b"\0").decode("ascii"),
    }


def part_sizes(head):
    """Bytes of the index part and of the value part, without padding."""
    nnz, precision = head["nnz"], head["precision"]
    if head["format"] == "abort":
        return 0, nnz
    indices = {
        "coo": nnz * index_width(head),
        "dense": 0,
        "elias_fano": 8 * sum(elias_fano_words(nnz, head["span"])),
        "bitmap": 8 * words(head["span"]),
        "tiles": 8 * (words(words(head["span"])) + head["tiles"]),
    }[head["format"]]
    if precision in BITS:
        return indices, BUCKET_BYTES[precision] * up(nnz, head["bucket"]) + up(nnz * BITS[precision], 8)
    return indices, nnz * struct.calcsize(NUMBERS[head["dtype"] if precision == "exact" else precision])


def up(count, unit):
    """How many units hold ``count``."""
    return -(-count // unit)


def words(bits):
    return up(bits, 64)


# -- checksum ------------------------------------------------------------------------------------


def checksum(data, so_far):
    """CRC-64/NVME, bit by bit; the data are one long number, divided by the polynomial."""
    remainder = so_far ^ NO_BITS_CLEAR
    for byte in data:
        for bit in range(8):
            odd = (remainder ^ byte >> bit) & 1
            remainder >>= 1
            if odd:
                remainder ^= REVERSED_POLYNOMIAL
    return remainder ^ NO_BITS_CLEAR


NO_BITS_CLEAR = 2**64 - 1
REVERSED_POLYNOMIAL = int(f"{0xAD93D23594C93659:064b}"[::-1], 2)


# -- indices -------------------------------------------------------------------------------------


def index_width(head):
    return 4 if head["length"] <= 2**32 else 8


def coo(part, head):
    return [index for (index,) in struct.iter_unpack("<I" if index_width(head) == 4 else "<Q", part)]


def dense(part, head):
    return list(range(head["start"], head["stop"]))


def bitmap(part, head):
    return [head["start"] + bit for bit in ones(part)]


def tiles(part, head):
    """The word of each tile that is listed in a bitmap of tiles; a tile is 64 positions."""
    directory, tile_words = part[: 8 * words(words(head["span"]))], part[8 * words(words(head["span"])) :]
    listed = list(ones(directory))
    require(len(listed) == head["tiles"], "as many tiles as the header says")
    indices = []
    for j, tile in enumerate(listed):
        word = tile_words[8 * j : 8 * j + 8]
        require(any(word), "a listed tile has entries")
        indices += [head["start"] + 64 * tile + bit for bit in ones(word)]
    return indices


def elias_fano(part, head):
    low = low_bits(head["nnz"], head["span"])
    lower_words, _ = elias_fano_words(head["nnz"], head["span"])
    lower, upper = bits_of(part[: 8 * lower_words]), part[8 * lower_words :]
    high_parts = [bit - j for j, bit in enumerate(ones(upper))]
    low_parts = [lower >> j * low & (1 << low) - 1 for j in range(len(high_parts))]
    relative = [high << low | rest for high, rest in zip(high_parts, low_parts, strict=True)]
    return [head["start"] + index for index in relative]


def low_bits(count, span):
    """floor(log2(span / count))"""
    return (span // count).bit_length() - 1 if count else 0


def elias_fano_words(count, span):
    """Of the lower and of the upper part."""
    if count == 0:
        return 0, 0
    low = low_bits(count, span)
    return words(count * low), words(count + (span - 1 >> low))


def bits_of(part):
    return int.from_bytes(part, "little")


def ones(part):
    """The numbers of the bits that are set, ascending."""
    for at, byte in enumerate(part):
        yield from (8 * at + bit for bit in range(8) if byte >> bit & 1)


def check_indices(indices, head):
    require(len(indices) == head["nnz"], "as many entries as the header says")
    require(all(a < b for a, b in pairwise(indices)), "indices increase")
    require(all(head["start"] <= index < head["stop"] for index in indices), "indices lie in the range")


READ_INDICES = {"coo": coo, "dense": dense, "elias_fano": elias_fano, "bitmap": bitmap, "tiles": tiles}


# -- values --------------------------------------------------------------------------------------


def read_values(part, head):
    if head["precision"] == "two_levels":
        return two_levels(part, head)
    if head["precision"] in BITS:
        return qsgd(part, head)
    return numbers(part, head["dtype"] if head["precision"] == "exact" else head["precision"])


def numbers(part, dtype):
    plain = [number for (number,) in struct.iter_unpack("<" + NUMBERS[dtype], part)]
    return [float32(bits << 16) for bits in plain] if dtype == "bfloat16" else plain


def float32(bits):
    return struct.unpack("<f", struct.pack("<I", bits))[0]


def qsgd(part, head):
    """scale * (level / s), each rounded to float32; the one code without a mirror image is NaN."""
    width, bucket = BITS[head["precision"]], head["bucket"]
    scale_bytes = 4 * up(head["nnz"], bucket)
    scales, codes = numbers(part[:scale_bytes], "float32"), bits_of(part[scale_bytes:])
    values = []
    for j in range(head["nnz"]):
        code = codes >> j * width & (1 << width) - 1
        level = code - (1 << width) if code >> width - 1 else code
        spare = level == -(1 << width - 1)
        s = (1 << width - 1) - 1
        values.append(float("nan") if spare else rounded(scales[j // bucket] * rounded(level / s)))
    return values


def two_levels(part, head):
    """The lower bit of a code is which magnitude of the bucket, the upper bit is the sign."""
    level_bytes = 8 * up(head["nnz"], head["bucket"])
    levels, codes = numbers(part[:level_bytes], "float32"), bits_of(part[level_bytes:])
    values = []
    for j in range(head["nnz"]):
        is_upper, is_negative = codes >> 2 * j & 1, codes >> 2 * j + 1 & 1
        level = levels[2 * (j // head["bucket"]) + is_upper]
        values.append(-level if is_negative else level)
    return values


def rounded(number):
    """To float32.  The quotient and the product were rounded to float64 before, which changes nothing."""
    return struct.unpack("<f", struct.pack("<f", number))[0]
