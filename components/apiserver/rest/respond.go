package rest

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"

	"hyperkube/components/apiserver/negotiate"
	"hyperkube/components/apiserver/registry"
	"hyperkube/components/apiserver/request"
	"hyperkube/components/apiserver/wire"
	"hyperkube/internal/api"
	"hyperkube/internal/store"
)

// buffers is a pool of buffers in which responses are built. See getBuffer.
var buffers = sync.Pool{New: func() any { return new(buffer) }}

// buffer is a byte slice that can be reused. Get one from getBuffer and return it with free.
type buffer struct{ data []byte }

// maxPooled is the maximum capacity, in bytes, of a buffer that is returned to the pool. Larger
// ones are left to the garbage collector.
const maxPooled = 1 << 20

// getBuffer returns an empty buffer with a capacity of at least size bytes. The caller must call
// free.
func getBuffer(size int) *buffer {
	b := buffers.Get().(*buffer)
	if cap(b.data) < size {
		b.data = make([]byte, 0, size)
	}
	b.data = b.data[:0]
	return b
}

// free returns b to the pool, unless it is very large. The caller must not use its data afterwards.
func (b *buffer) free() {
	if cap(b.data) <= maxPooled {
		buffers.Put(b)
	}
}

// responder encodes and sends objects of the requested resource.
type responder struct{ *call }

// sendEntry sends the object of an entry in the negotiated format: as the object, its metadata or a table with one
// row. It returns an error if the object cannot be encoded, or if the client accepts only the metadata of lists.
func (c responder) sendEntry(format negotiate.Format, code int, e *store.Entry) error {
	switch format.As {
	case negotiate.Table:
		obj, err := c.res.Read(e)
		if err != nil {
			return err
		}
		return c.sendTable(format, code, []tableRow{{obj: obj, entry: e}}, tableMeta{revision: e.Revision(), next: "", remaining: -1})
	case negotiate.MetadataList:
		return c.objectNotList()
	}
	b := getBuffer(0)
	var err error
	if b.data, err = c.appendEntry(b.data, format, e); err != nil {
		return err
	}
	if len(b.data) <= deferThreshold {
		defer b.free()
	}
	return c.write(format, code, b.data)
}

// appendEntry appends the encoded object of an entry, or its metadata, as a complete response body
// to dst.
func (c responder) appendEntry(dst []byte, format negotiate.Format, e *store.Entry) ([]byte, error) {
	kind := c.res.Object
	if format.As == negotiate.Metadata {
		kind = partialKind(format.Version)
	}
	if format.Media == negotiate.Protobuf {
		raw, err := c.rawOf(e, format.As == negotiate.Metadata)
		if err != nil {
			return dst, err
		}
		return kind.AppendProto(dst, raw, e.Revision()), nil
	}
	data, err := c.jsonOf(e, format.As == negotiate.Metadata)
	if err != nil {
		return dst, err
	}
	return kind.AppendJSON(dst, data), nil
}

// rawOf returns the protobuf message of an entry without the envelope, or only that of its
// metadata. The resource version is not included; the envelope's encoder adds it.
func (c responder) rawOf(e *store.Entry, metadata bool) ([]byte, error) {
	if metadata && !c.res.HasProtobuf() {
		obj, err := c.res.Read(e)
		if err != nil {
			return nil, err
		}
		partial := registry.PartialMetadata(obj)
		partial.ResourceVersion = ""
		return partial.Marshal()
	}
	raw, err := c.res.Raw(e)
	if err == nil && metadata {
		raw, err = wire.Metadata(raw)
	}
	return raw, err
}

// jsonOf returns the JSON of an entry's object, or of its metadata only.
func (c responder) jsonOf(e *store.Entry, metadata bool) ([]byte, error) {
	if metadata {
		return c.res.MetadataJSON(e, 0)
	}
	return c.res.JSON(e)
}

// sendAPIObject sends an object that is not in the store, such as the result of a dry run or a deleted object, in the
// negotiated format.
func (c responder) sendAPIObject(format negotiate.Format, code int, obj api.Object) error {
	switch format.As {
	case negotiate.Table:
		revision, _ := strconv.ParseInt(obj.GetResourceVersion(), 10, 64)
		return c.sendTable(format, code, []tableRow{{obj: obj}}, tableMeta{revision: revision, remaining: -1})
	case negotiate.MetadataList:
		return c.objectNotList()
	case negotiate.Metadata:
		partial := registry.PartialMetadata(obj)
		partial.SetGroupVersionKind(partialKind(format.Version).GroupVersionKind)
		return c.SendObject(c.w, c.req, format, code, partial)
	}
	return c.SendObject(c.w, c.req, format, code, c.res.Reread(obj))
}

// sendOutcome sends the result of an action, as an object or as partial metadata. A result without metadata, such as
// a Status, is always sent as an object. It returns an error if the client accepts only the metadata of lists.
func (c responder) sendOutcome(format negotiate.Format, code int, out runtime.Object) error {
	meta, ok := out.(metav1.Object)
	switch {
	case !ok || format.As == negotiate.Object:
	case format.As == negotiate.MetadataList:
		return c.objectNotList()
	default:
		partial := registry.PartialMetadata(meta)
		partial.SetGroupVersionKind(partialKind(format.Version).GroupVersionKind)
		out = partial
	}
	return c.SendObject(c.w, c.req, format, code, out)
}

// sendChanged sends the object after an update, with the code 201 if the update created it.
func (c responder) sendChanged(format negotiate.Format, out changed) error {
	code := http.StatusOK
	if out.created {
		code = http.StatusCreated
	}
	if out.entry != nil {
		return c.sendEntry(format, code, out.entry)
	}
	return c.sendAPIObject(format, code, out.obj)
}

// typeName returns upstream's Go type of a kind, which is part of the messages of error 406.
func (c responder) typeName(kind string) string {
	if c.res.Custom != nil {
		if kind == c.res.ListKind {
			return "*unstructured.UnstructuredList"
		}
		return "*unstructured.Unstructured"
	}
	return "*" + internalPackage(c.res.Group) + "." + kind
}

// listNotObject returns the error 406 for a list request that accepts only PartialObjectMetadata,
// the metadata of a single object.
func (c responder) listNotObject() error {
	return negotiate.NotAcceptable(fmt.Sprintf("you requested PartialObjectMetadata, but the requested object is a list (%s)", c.typeName(c.res.ListKind)))
}

// objectNotList returns the error for a request of a single object that accepts only
// PartialObjectMetadataList.
func (c responder) objectNotList() error {
	if c.res.Custom != nil {
		return errNotList
	}
	return negotiate.NotAcceptable(fmt.Sprintf("you requested PartialObjectMetadataList, but the requested object is not a list (%s)", c.typeName(c.res.Kind)))
}

// errNotList is upstream's error for a single custom resource that was requested as
// PartialObjectMetadataList.
var errNotList = errors.New("content is not a list")

var (
	partialKinds     = metaKinds("PartialObjectMetadata")
	partialListKinds = metaKinds("PartialObjectMetadataList")
	tableKinds       = metaKinds("Table")
)

// metaKinds returns the encoders of a kind of the group meta.k8s.io by version.
func metaKinds(kind string) map[string]*wire.Kind {
	out := map[string]*wire.Kind{}
	for _, v := range []string{"v1", "v1beta1"} {
		out[v] = wire.NewKind(schema.GroupVersionKind{Group: "meta.k8s.io", Version: v, Kind: kind})
	}
	return out
}

// partialKind returns the encoder of PartialObjectMetadata in a version of meta.k8s.io, or nil for an unknown
// version.
func partialKind(version string) *wire.Kind { return partialKinds[version] }

// SendObject sends any API object in the negotiated format. If obj has no kind, the response
// contains the kind of its Go type. obj is not modified.
func (h *Handler) SendObject(w http.ResponseWriter, req *http.Request, format negotiate.Format, code int, obj runtime.Object) error {
	data, err := encode(format, obj)
	if err != nil {
		return err
	}
	return h.write(w, req, format, code, data)
}

// encode returns obj as protobuf if format requests it, otherwise as JSON. If obj has no kind, the result contains
// the kind of its Go type. It returns an error if the type is unknown or has no protobuf form.
func encode(format negotiate.Format, obj runtime.Object) ([]byte, error) {
	gvk := obj.GetObjectKind().GroupVersionKind()
	if gvk.Kind == "" {
		kinds, _, err := scheme.Scheme.ObjectKinds(obj)
		if err != nil {
			return nil, fmt.Errorf("encoding %T: %w", obj, err)
		}
		gvk = kinds[0]
	}
	kind := wire.NewKind(gvk)
	if format.Media == negotiate.Protobuf {
		m, ok := obj.(wire.Sized)
		if !ok {
			return nil, fmt.Errorf("encoding %s: it has no protobuf form", gvk.Kind)
		}
		raw := make([]byte, m.Size())
		if _, err := m.MarshalToSizedBuffer(raw); err != nil {
			return nil, fmt.Errorf("encoding %s: %w", gvk.Kind, err)
		}
		return kind.AppendProto(nil, raw, 0), nil
	}
	data, err := json.Marshal(obj)
	if err != nil {
		return nil, fmt.Errorf("encoding %s: %w", gvk.Kind, err)
	}
	if obj.GetObjectKind().GroupVersionKind().Kind == "" {
		data = kind.AppendJSON(nil, data)
	}
	return data, nil
}

// write sends an encoded response to the request. See Handler.write.
func (c responder) write(format negotiate.Format, code int, data []byte) error {
	return c.Handler.write(c.w, c.req, format, code, data)
}

// deferThreshold is the size in bytes from which on a response is sent only after the request has
// released its flow control seats, because a slow client may block the connection. Smaller
// responses fit into the buffers of the connection.
const deferThreshold = 32 << 10

// write sends an encoded JSON or protobuf response, after converting JSON to YAML or indented JSON
// if format requires it. If data is longer than deferThreshold, it is sent after write has
// returned, so the caller must not modify it.
func (h *Handler) write(w http.ResponseWriter, req *http.Request, format negotiate.Format, code int, data []byte) error {
	if len(data) <= deferThreshold {
		return h.writeNow(w, req, format, code, data)
	}
	request.SendLater(w, len(data), func() {
		if err := h.writeNow(w, req, format, code, data); err != nil {
			h.Error(w, req, err)
		}
	})
	return nil
}

// writeNow does the same as write without deferring data of any size. It compresses large responses to GET requests
// of remote clients that accept gzip.
func (h *Handler) writeNow(w http.ResponseWriter, req *http.Request, format negotiate.Format, code int, data []byte) error {
	data, err := h.readable(req.Context(), format, data)
	if err != nil {
		return err
	}
	header := w.Header()
	header.Set("Content-Type", format.Media.String())
	if len(data) > compressThreshold && (req.Method == http.MethodGet) && wantsGzip(req) && !local(req) {
		header.Set("Content-Encoding", "gzip")
		header.Add("Vary", "Accept-Encoding")
		w.WriteHeader(code)
		return h.compressor.write(w, data)
	}
	if header.Get("Cache-Control") == "" {
		header.Set("Cache-Control", "no-cache, private")
	}
	header.Set("Content-Length", strconv.Itoa(len(data)))
	w.WriteHeader(code)
	// From here on errors cannot be reported to the client.
	_, _ = w.Write(data)
	return nil
}

// readable converts data, a JSON response, to YAML or indented JSON if the client has requested that format, and
// otherwise returns it unchanged. Large responses wait for a CPU slot.
func (h *Handler) readable(ctx context.Context, format negotiate.Format, data []byte) ([]byte, error) {
	indent := format.Media == negotiate.JSON && format.Pretty
	if format.Media != negotiate.YAML && !indent {
		return data, nil
	}
	if len(data) > slotThreshold {
		done, err := h.cpuSlots.acquire(ctx)
		if err != nil {
			return nil, err
		}
		defer done()
	}
	if !indent {
		y, err := yaml.JSONToYAML(data)
		if err != nil {
			return nil, fmt.Errorf("encoding YAML: %w", err)
		}
		return y, nil
	}
	var out bytes.Buffer
	if err := json.Indent(&out, data, "", "  "); err != nil {
		return nil, fmt.Errorf("indenting JSON: %w", err)
	}
	return out.Bytes(), nil
}

// compressThreshold is the size in bytes from which on responses are compressed with gzip, as in
// upstream.
const compressThreshold = 128 << 10

// compressor compresses responses. It reuses gzip writers, which are expensive to create.
type compressor struct{ pool sync.Pool }

// write sends data compressed with gzip. It ignores errors of sending, because they only concern this client, and
// returns an error only if compressing cannot begin.
func (p *compressor) write(w http.ResponseWriter, data []byte) error {
	z, ok := p.pool.Get().(*gzip.Writer)
	if ok {
		z.Reset(w)
	} else {
		var err error
		// Level 1 is several times faster than the default level, and the result is only slightly
		// larger.
		if z, err = gzip.NewWriterLevel(w, gzip.BestSpeed); err != nil {
			return fmt.Errorf("making a gzip writer: %w", err)
		}
	}
	_, err := z.Write(data)
	if err = errors.Join(err, z.Close()); err == nil {
		p.pool.Put(z)
	}
	return nil
}

// wantsGzip reports whether the client accepts responses compressed with gzip.
func wantsGzip(req *http.Request) bool {
	for _, v := range req.Header.Values("Accept-Encoding") {
		for part := range strings.SplitSeq(v, ",") {
			name, _, _ := strings.Cut(part, ";")
			if strings.TrimSpace(name) == "gzip" {
				return true
			}
		}
	}
	return false
}

// local reports whether a request came from this process or from a loopback address of this host. For those,
// compression costs more time than it saves.
func local(req *http.Request) bool {
	if req.RemoteAddr == "" {
		return true
	}
	host, _, err := net.SplitHostPort(req.RemoteAddr)
	if err != nil {
		return false
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.IsLoopback()
}
