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

// most is how much of a body is kept; larger ones are not recorded.
const most = 8 << 20

// trail is the record of one request: it stands between the handler and the
// client and listens.
type trail struct {
	http.ResponseWriter
	ctx   context.Context //nolint:containedctx // it is this request's, and so is the struct
	ac    *audit.AuditContext
	rules audit.RequestAuditConfig
	info  *apirequest.RequestInfo
	long  bool
	begun bool
	// listening: the answer's body is kept.
	listening bool
	sent      bytes.Buffer
	received  *tee
	// requested: the object that came has been recorded as it was understood.
	requested bool
	patch     bool
	// code of the answer.
	code      int
	mediaType string
}

func newTrail(w http.ResponseWriter, ac *audit.AuditContext, rules audit.RequestAuditConfig, info *apirequest.RequestInfo, ctx context.Context) *trail {
	return &trail{ResponseWriter: w, ctx: ctx, ac: ac, rules: rules, info: info}
}

// tee keeps what the handler reads.
type tee struct {
	io.ReadCloser
	kept bytes.Buffer
}

// Read as io.Reader.
func (t *tee) Read(p []byte) (int, error) {
	n, err := t.ReadCloser.Read(p)
	if t.kept.Len() < most {
		t.kept.Write(p[:n])
	}
	return n, err
}

// listen prepares a request whose bodies are recorded. Those of streams are
// not.
func (t *trail) listen(req *http.Request) *http.Request {
	if t.long || !t.info.IsResourceRequest {
		return req
	}
	bodies := !t.rules.Level.Less(auditapi.LevelRequest)
	if bodies && !t.rules.Level.Less(auditapi.LevelRequestResponse) {
		// What is recorded must not be compressed.
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
	return req.WithContext(context.WithValue(req.Context(), trailKey{}, t))
}

func mediaType(h http.Header) string {
	media, _, err := mime.ParseMediaType(h.Get("Content-Type"))
	if err != nil {
		return "application/json"
	}
	return media
}

// start notes the status of the answer.
func (t *trail) start(code int) {
	if t.begun {
		return
	}
	t.begun, t.code = true, code
	t.ac.SetEventResponseStatusCode(int32(code))
	failed := code >= http.StatusBadRequest
	// What a Status tells is part of the metadata: errors, and deletions.
	t.listening = t.info != nil && (failed || !t.long && t.info.IsResourceRequest &&
		(t.info.Verb == "delete" || !t.rules.Level.Less(auditapi.LevelRequestResponse)))
	if t.long && !failed {
		t.ac.ProcessEventStage(t.ctx, auditapi.StageResponseStarted)
	}
}

// WriteHeader as http.ResponseWriter.
func (t *trail) WriteHeader(code int) {
	if code >= http.StatusOK || code == http.StatusSwitchingProtocols {
		t.start(code)
	}
	t.ResponseWriter.WriteHeader(code)
}

// Write as http.ResponseWriter.
func (t *trail) Write(p []byte) (int, error) {
	t.start(http.StatusOK)
	if t.listening && t.sent.Len() < most {
		t.sent.Write(p)
	}
	return t.ResponseWriter.Write(p)
}

// Flush as http.Flusher.
func (t *trail) Flush() {
	t.start(http.StatusOK)
	if f, ok := t.ResponseWriter.(http.Flusher); ok {
		f.Flush()
	}
}

// Hijack as http.Hijacker.
func (t *trail) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	h, ok := t.ResponseWriter.(http.Hijacker)
	if !ok {
		return nil, nil, fmt.Errorf("taking the connection over: %w", http.ErrNotSupported)
	}
	t.start(http.StatusSwitchingProtocols)
	return h.Hijack()
}

// Unwrap is for http.ResponseController.
func (t *trail) Unwrap() http.ResponseWriter { return t.ResponseWriter }

// end records the last stage; v is what the handler panicked with, or nil.
func (t *trail) end(v any) {
	t.logRequest()
	if v != nil {
		t.ac.SetEventResponseStatus(&metav1.Status{
			Code: http.StatusInternalServerError, Status: metav1.StatusFailure,
			Reason: metav1.StatusReasonInternalError, Message: fmt.Sprintf("APIServer panic'd: %v", v),
		})
		t.ac.ProcessEventStage(t.ctx, auditapi.StagePanic)
		return
	}
	if !t.begun {
		t.ac.SetEventResponseStatus(&metav1.Status{Code: http.StatusOK, Status: metav1.StatusSuccess, Message: "Connection closed early"})
		if t.long {
			t.ac.ProcessEventStage(t.ctx, auditapi.StageResponseStarted)
		}
	}
	t.logResponse()
	if t.long && t.code >= http.StatusBadRequest {
		// The first event of a stream that never was tells why.
		t.ac.ProcessEventStage(t.ctx, auditapi.StageResponseStarted)
	}
	t.ac.ProcessEventStage(t.ctx, auditapi.StageResponseComplete)
}

// logRequest records what the request brought.
func (t *trail) logRequest() {
	if t.requested || t.received == nil || t.received.kept.Len() == 0 || t.received.kept.Len() >= most {
		return
	}
	switch t.info.Verb {
	case "create", "update":
		if t.code >= http.StatusBadRequest {
			return // it has not even been understood
		}
	case "patch":
		if t.code == http.StatusUnsupportedMediaType {
			return
		}
	}
	data := asJSON(t.mediaType, t.received.kept.Bytes())
	if data == nil {
		return
	}
	if t.patch {
		audit.LogRequestPatch(t.ctx, data)
		return
	}
	if obj := t.object(data); obj != nil {
		gvr := t.gvr()
		audit.LogRequestObject(t.ctx, obj, gvr.GroupVersion(), gvr, t.info.Subresource, plain{})
	}
}

// logResponse records what the answer brought.
func (t *trail) logResponse() {
	if !t.listening || t.sent.Len() == 0 || t.sent.Len() >= most {
		return
	}
	data := asJSON(mediaType(t.Header()), t.sent.Bytes())
	if data == nil {
		return
	}
	var status metav1.Status
	if json.Unmarshal(data, &status) == nil && status.Kind == "Status" {
		status.Code = int32(t.code)
		audit.LogResponseObject(t.ctx, &status, metav1.SchemeGroupVersion, plain{})
		return
	}
	if obj := t.object(data); obj != nil {
		audit.LogResponseObject(t.ctx, obj, t.gvr().GroupVersion(), plain{})
	}
}

// object reads JSON; nil when it is no object.
func (t *trail) object(data []byte) runtime.Object {
	u := &unstructured.Unstructured{}
	if json.Unmarshal(data, &u.Object) != nil || u.Object == nil {
		return nil
	}
	if t.rules.OmitManagedFields {
		omitManagedFields(u.Object)
	}
	return u
}

// omitManagedFields takes them from an object and from the items of a list or
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

// asJSON converts a body; nil when it cannot be.
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
