"""Reads TASO's protobuf of rules (`graph_subst.pb`), without a protobuf library: seven messages, all fields
int32 or messages.

    RuleCollection{rule=1*}  Rule{srcOp=1*, dstOp=2*, mappedOutput=3*}  Operator{type=1, input=2*, para=3*}
    Tensor{opId=1, tsId=2}   Parameter{key=1, value=2}   MapOutput{srcOpId=1, dstOpId=2, srcTsId=3, dstTsId=4}

The protobuf has no names; `taso_pb_rule_<position>` is ours.  Negative int32 are ten-byte varints.  Decoding then
encoding gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .formats import LARGEST, OPERATOR_CODES, PARAMETER_CODES, PublicOperator, PublicRule, PublicTensor, RuleError


def decode_rules(data: bytes, place: str = "rule file") -> tuple[PublicRule, ...]:
    """Rules of the protobuf bytes; `RuleError` naming the rule for anything malformed."""
    rules: list[PublicRule] = []
    for field, value in _fields(data, place):
        name = f"taso_pb_rule_{len(rules)}"
        if field != 1 or not isinstance(value, bytes):
            raise RuleError(place, f"field {field} at the top: not a RuleCollection")
        sides: tuple[list[PublicOperator], list[PublicOperator]] = ([], [])
        pairs = []
        for inner, body in _fields(value, name):
            if not isinstance(body, bytes) or inner not in (1, 2, 3):
                raise RuleError(name, f"field {inner} of a Rule")
            if inner == 3:
                a, b, c, d = _numbers(body, name, 4)
                pairs.append((PublicTensor(a, c), PublicTensor(b, d)))
            else:
                sides[inner - 1].append(_operator(body, name))
        rules.append(PublicRule(len(rules), name, tuple(sides[0]), tuple(sides[1]), tuple(pairs)))
    return tuple(rules)


def encode_rules(rules: Sequence[PublicRule]) -> bytes:
    """Protobuf bytes of rules whose operators and parameters have codes; `RuleError` otherwise.

    >>> x = PublicTensor(-1)
    >>> r = PublicRule(0, "taso_pb_rule_0", (PublicOperator("RELU", (x,)),), (PublicOperator("SPLIT", (x,), (("AXIS",
    ...     1),)),), ((PublicTensor(0), PublicTensor(0, 1)),))
    >>> decode_rules(encode_rules([r])) == (r,)
    True
    """
    out = b""
    for r in rules:
        body = b"".join(
            _message(side, _encode_operator(op, r.name)) for side, ops in ((1, r.source), (2, r.target)) for op in ops
        )
        body += b"".join(_message(3, _integers(s.operator, t.operator, s.output, t.output)) for s, t in r.outputs)
        out += _message(1, body)
    return out


def _operator(data: bytes, rule: str) -> PublicOperator:
    kind: int | None = None
    inputs, parameters = [], []
    for field, value in _fields(data, rule):
        if field == 1 and isinstance(value, int):
            kind = value
        elif field == 2 and isinstance(value, bytes):
            a, b = _numbers(value, rule, 2)
            inputs.append(PublicTensor(a, b))
        elif field == 3 and isinstance(value, bytes):
            key, number = _numbers(value, rule, 2)
            if not 0 <= key < len(PARAMETER_CODES):
                raise RuleError(rule, f"unknown parameter code {key}")
            parameters.append((PARAMETER_CODES[key], number))
        else:
            raise RuleError(rule, f"field {field} of an Operator")
    if kind is None or not 0 <= kind < len(OPERATOR_CODES):
        raise RuleError(rule, f"unknown operator code {kind}")
    return PublicOperator(OPERATOR_CODES[kind], tuple(inputs), tuple(parameters))


def _numbers(data: bytes, rule: str, count: int) -> list[int]:
    out: dict[int, int] = {}
    for field, value in _fields(data, rule):
        if not isinstance(value, int) or not 1 <= field <= count or field in out:
            raise RuleError(rule, f"field {field} where {count} integers are expected")
        out[field] = value
    if len(out) < count:
        raise RuleError(rule, f"{len(out)} of {count} integers of a Tensor, Parameter or MapOutput")
    return [out[k + 1] for k in range(count)]


def _fields(data: bytes, rule: str) -> Iterator[tuple[int, int | bytes]]:
    """(field number, integer or bytes) of one message."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at, rule)
        if tag & 7 == 0:
            value, at = _varint(data, at, rule)
            value = value - (1 << 64) if value >> 63 else value
            if not -LARGEST <= value < LARGEST:
                raise RuleError(rule, f"{value} is no int32")
            yield tag >> 3, value
        elif tag & 7 == 2:
            size, at = _varint(data, at, rule)
            if at + size > len(data):
                raise RuleError(rule, "ends in the middle of a message")
            yield tag >> 3, data[at : at + size]
            at += size
        else:
            raise RuleError(rule, f"wire type {tag & 7}: not a TASO rule file")


def _varint(data: bytes, at: int, rule: str) -> tuple[int, int]:
    value = 0
    for k in range(10):
        if at + k >= len(data):
            raise RuleError(rule, "ends in the middle of a number")
        value |= (data[at + k] & 127) << (7 * k)
        if data[at + k] < 128:
            if value >> 64:
                break
            return value, at + k + 1
    raise RuleError(rule, "a number has more than 64 bits")


def _encode_operator(op: PublicOperator, rule: str) -> bytes:
    if op.kind not in OPERATOR_CODES:
        raise RuleError(rule, f"OP_{op.kind} has no protobuf code")
    out = b"\x08" + _encode_varint(OPERATOR_CODES.index(op.kind))
    out += b"".join(_message(2, _integers(t.operator, t.output)) for t in op.inputs)
    return out + b"".join(_message(3, _integers(PARAMETER_CODES.index(k), v)) for k, v in op.parameters)


def _integers(*values: int) -> bytes:
    return b"".join(_encode_varint((k + 1) << 3) + _encode_varint(v % (1 << 64)) for k, v in enumerate(values))


def _message(field: int, body: bytes) -> bytes:
    return _encode_varint(field << 3 | 2) + _encode_varint(len(body)) + body


def _encode_varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)
