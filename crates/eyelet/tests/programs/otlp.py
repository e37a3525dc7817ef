"""Reads OTLP's JSON with OpenTelemetry's own definitions, from standard input: an unknown member, a
wrong type or a wrong name fails. Says each span in a line: kind, trace, span, parent, name, and its
attributes."""
import base64
import json
import sys

from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2
from opentelemetry.proto.trace.v1 import trace_pb2


def ids_as_bytes(span):
    # The only difference to the JSON mapping of Protobuf: ids are in hexadecimal digits.
    for name in ("traceId", "spanId", "parentSpanId"):
        if name in span:
            span[name] = base64.b64encode(bytes.fromhex(span[name])).decode()


body = json.load(sys.stdin)
for resource in body["resourceSpans"]:
    for scope in resource["scopeSpans"]:
        for span in scope["spans"]:
            ids_as_bytes(span)
request = trace_service_pb2.ExportTraceServiceRequest()
json_format.ParseDict(body, request)
for resource in request.resource_spans:
    names = {a.key: a.value.string_value for a in resource.resource.attributes}
    print("service", names["service.name"])
    for scope in resource.scope_spans:
        for span in scope.spans:
            assert len(span.trace_id) == 16 and len(span.span_id) == 8, span
            assert 0 < span.start_time_unix_nano <= span.end_time_unix_nano, span
            kind = trace_pb2.Span.SpanKind.Name(span.kind)
            said = {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in span.attributes}
            ids = [id.hex() or "-" for id in (span.trace_id, span.span_id, span.parent_span_id)]
            print(kind, *ids, span.name, json.dumps(said, sort_keys=True))
