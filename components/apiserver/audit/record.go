package audit

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	auditapi "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"
)

// maxRecordedBody is the size in bytes from which on the body of a request or response is not
// recorded in its audit event.
const maxRecordedBody = 8 << 20

// requestRecord captures what is needed for the audit event of one request. It wraps the response
// writer and the request body to capture what the handler reads and writes.
type requestRecord struct {
	http.ResponseWriter
	ctx   context.Context //nolint:containedctx // the struct lives as long as the request
	ac    *audit.AuditContext
	rules audit.RequestAuditConfig
	info  *apirequest.RequestInfo
	// longRunning means that the request is a stream such as a watch, which has an event ResponseStarted and no
	// bodies.
	longRunning bool
	// started means that the response has started, so its status is known.
	started bool
	// captureResponse means that the response body is captured.
	captureResponse bool
	// sent is the captured response body.
	sent bytes.Buffer
	// received captures the request body. It is nil if the body is not captured.
	received *tee
	// objectRecorded means that the decoded request object has been recorded.
	objectRecorded bool
	// patch means that the request body is a patch and not an object.
	patch bool
	// code is the response status.
	code      int
	mediaType string
}

// newRequestRecord returns the ResponseWriter for a request with the given info and context ctx. It passes the
// response on to w, and records it in ac as far as the audit policy (rules) requires.
func newRequestRecord(w http.ResponseWriter, ac *audit.AuditContext, rules audit.RequestAuditConfig, info *apirequest.RequestInfo, ctx context.Context) *requestRecord {
	return &requestRecord{ResponseWriter: w, ctx: ctx, ac: ac, rules: rules, info: info}
}

// tee is a request body that also captures the bytes that the handler reads.
type tee struct {
	io.ReadCloser
	captured bytes.Buffer
}

// Read implements io.Reader. It captures up to about maxRecordedBody bytes.
func (t *tee) Read(p []byte) (int, error) {
	n, err := t.ReadCloser.Read(p)
	if t.captured.Len() < maxRecordedBody {
		t.captured.Write(p[:n])
	}
	return n, err
}

// captureBodies returns the request with a body that is captured while the handler reads it, and lets Requested find
// t. If the level is RequestResponse, it also disables compression of the response. Long-running requests and those
// for other paths than resources are returned unchanged.
func (t *requestRecord) captureBodies(req *http.Request) *http.Request {
	if t.longRunning || !t.info.IsResourceRequest {
		return req
	}
	bodies := !t.rules.Level.Less(auditapi.LevelRequest)
	if bodies && !t.rules.Level.Less(auditapi.LevelRequestResponse) {
		// The recorded response must not be compressed.
		req.Header.Del("Accept-Encoding")
	}
	switch t.info.Verb {
	case "create", "update", "patch", "delete", "deletecollection":
		if req.Body != nil && req.ContentLength != 0 {
			t.received = &tee{ReadCloser: req.Body}
			req.Body = t.received
			t.mediaType = mediaType(req.Header)
			t.patch = t.info.Verb == "patch"
		}
	}
	return req.WithContext(context.WithValue(req.Context(), requestRecordKey{}, t))
}

// mediaType returns the media type in the Content-Type of a header without parameters, or JSON if it is missing or
// invalid.
func mediaType(h http.Header) string {
	media, _, err := mime.ParseMediaType(h.Get("Content-Type"))
	if err != nil {
		return "application/json"
	}
	return media
}

// start records the response status when the response starts, and decides whether the response body is captured. For
// a long-running request that succeeds it writes the event ResponseStarted. Only the first call has an effect.
func (t *requestRecord) start(code int) {
	if t.started {
		return
	}
	t.started, t.code = true, code
	t.ac.SetEventResponseStatusCode(int32(code))
	failed := code >= http.StatusBadRequest
	// Status objects of errors and deletions are part of the metadata.
	t.captureResponse = t.info != nil && (failed || !t.longRunning && t.info.IsResourceRequest &&
		(t.info.Verb == "delete" || !t.rules.Level.Less(auditapi.LevelRequestResponse)))
	if t.longRunning && !failed {
		t.ac.ProcessEventStage(t.ctx, auditapi.StageResponseStarted)
	}
}

// WriteHeader implements http.ResponseWriter and records the status. Informational responses are
// not recorded.
func (t *requestRecord) WriteHeader(code int) {
	if code >= http.StatusOK || code == http.StatusSwitchingProtocols {
		t.start(code)
	}
	t.ResponseWriter.WriteHeader(code)
}

// Write implements http.ResponseWriter. It captures the response body, up to about maxRecordedBody bytes, if the
// audit level or an error status requires it.
func (t *requestRecord) Write(p []byte) (int, error) {
	t.start(http.StatusOK)
	if t.captureResponse && t.sent.Len() < maxRecordedBody {
		t.sent.Write(p)
	}
	return t.ResponseWriter.Write(p)
}

// Flush implements http.Flusher. It records that the response has started.
func (t *requestRecord) Flush() {
	t.start(http.StatusOK)
	if f, ok := t.ResponseWriter.(http.Flusher); ok {
		f.Flush()
	}
}

// Hijack implements http.Hijacker for upgraded connections, such as exec. It records the status
// 101. It returns an error if the wrapped writer cannot be hijacked.
func (t *requestRecord) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	h, ok := t.ResponseWriter.(http.Hijacker)
	if !ok {
		return nil, nil, fmt.Errorf("hijacking connection: %w", http.ErrNotSupported)
	}
	t.start(http.StatusSwitchingProtocols)
	return h.Hijack()
}

// Unwrap returns the wrapped writer, for http.ResponseController.
func (t *requestRecord) Unwrap() http.ResponseWriter { return t.ResponseWriter }

// end writes the last audit event of a request, ResponseComplete or Panic, after the handler of the request has
// returned. v is the value with which the handler has panicked, or nil.
func (t *requestRecord) end(v any) {
	t.logRequest()
	if v != nil {
		t.ac.SetEventResponseStatus(&metav1.Status{
			Code: http.StatusInternalServerError, Status: metav1.StatusFailure,
			Reason: metav1.StatusReasonInternalError, Message: fmt.Sprintf("APIServer panic'd: %v", v),
		})
		t.ac.ProcessEventStage(t.ctx, auditapi.StagePanic)
		return
	}
	if !t.started {
		t.ac.SetEventResponseStatus(&metav1.Status{Code: http.StatusOK, Status: metav1.StatusSuccess, Message: "Connection closed early"})
		if t.longRunning {
			t.ac.ProcessEventStage(t.ctx, auditapi.StageResponseStarted)
		}
	}
	t.logResponse()
	if t.longRunning && t.code >= http.StatusBadRequest {
		// A stream that failed to start also has a ResponseStarted event, with the reason.
		t.ac.ProcessEventStage(t.ctx, auditapi.StageResponseStarted)
	}
	t.ac.ProcessEventStage(t.ctx, auditapi.StageResponseComplete)
}

// logRequest adds the captured request body to the event, as an object or a patch. It does nothing if the decoded
// object has already been added, the body is empty, too large or cannot be converted to JSON, or the request was
// rejected and the body may not be a valid object.
func (t *requestRecord) logRequest() {
	if t.objectRecorded || t.received == nil || t.received.captured.Len() == 0 || t.received.captured.Len() >= maxRecordedBody {
		return
	}
	switch t.info.Verb {
	case "create", "update":
		if t.code >= http.StatusBadRequest {
			return // the body may not have been a valid object
		}
	case "patch":
		if t.code == http.StatusUnsupportedMediaType {
			return
		}
	}
	data := asJSON(t.mediaType, t.received.captured.Bytes())
	if data == nil {
		return
	}
	if t.patch {
		audit.LogRequestPatch(t.ctx, data)
		return
	}
	if obj := t.object(data); obj != nil {
		gvr := t.gvr()
		audit.LogRequestObject(t.ctx, obj, gvr.GroupVersion(), gvr, t.info.Subresource, jsonSerializer{})
	}
}

// logResponse adds the captured response body to the event, unless it is empty, too large or cannot be converted to
// JSON.
func (t *requestRecord) logResponse() {
	if !t.captureResponse || t.sent.Len() == 0 || t.sent.Len() >= maxRecordedBody {
		return
	}
	data := asJSON(mediaType(t.Header()), t.sent.Bytes())
	if data == nil {
		return
	}
	var status metav1.Status
	if json.Unmarshal(data, &status) == nil && status.Kind == "Status" {
		status.Code = int32(t.code)
		audit.LogResponseObject(t.ctx, &status, metav1.SchemeGroupVersion, jsonSerializer{})
		return
	}
	if obj := t.object(data); obj != nil {
		audit.LogResponseObject(t.ctx, obj, t.gvr().GroupVersion(), jsonSerializer{})
	}
}

// object parses a JSON object from a captured body, without managed fields if the policy omits
// them. It returns nil if data is not an object.
func (t *requestRecord) object(data []byte) runtime.Object {
	u := &unstructured.Unstructured{}
	if json.Unmarshal(data, &u.Object) != nil || u.Object == nil {
		return nil
	}
	if t.rules.OmitManagedFields {
		omitManagedFields(u.Object)
	}
	return u
}

// omitManagedFields removes managedFields from an object, from the items of a list and from the
// rows of a table.
func omitManagedFields(obj map[string]any) {
	unstructured.RemoveNestedField(obj, "metadata", "managedFields")
	for _, field := range []string{"items", "rows"} {
		list, _ := obj[field].([]any)
		for _, item := range list {
			m, ok := item.(map[string]any)
			if !ok {
				continue
			}
			if inner, ok := m["object"].(map[string]any); ok && field == "rows" {
				m = inner
			}
			unstructured.RemoveNestedField(m, "metadata", "managedFields")
		}
	}
}

// asJSON converts a captured body of a media type to JSON. It returns nil for media types other than JSON, YAML and
// protobuf, and if the body cannot be decoded.
func asJSON(media string, data []byte) []byte {
	switch {
	case strings.HasSuffix(media, "json") || bytes.HasPrefix(data, []byte("{")) || bytes.HasPrefix(data, []byte("[")):
		return bytes.Clone(data)
	case strings.HasSuffix(media, "yaml"):
		out, err := yaml.YAMLToJSON(data)
		if err != nil {
			return nil
		}
		return out
	case strings.Contains(media, "protobuf"):
		obj, gvk, err := scheme.Codecs.UniversalDeserializer().Decode(data, nil, nil)
		if err != nil || meta.IsListType(obj) && gvk == nil {
			return nil
		}
		obj.GetObjectKind().SetGroupVersionKind(*gvk)
		out, err := json.Marshal(obj)
		if err != nil {
			return nil
		}
		return out
	}
	return nil
}
