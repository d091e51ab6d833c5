package rest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hyperkube/components/apiserver/negotiate"
	"hyperkube/components/apiserver/request"
	"hyperkube/components/apiserver/wire"
	"hyperkube/internal/store"
)

// list handles a list request.
func (c *call) list() error {
	format, err := c.format()
	if err != nil {
		return err
	}
	opts, err := request.ListOptions(c.query)
	if err != nil {
		return err
	}
	if err := request.CheckListOptions(opts); err != nil {
		return err
	}
	if opts.TimeoutSeconds != nil && *opts.TimeoutSeconds > 0 {
		var cancel context.CancelFunc
		c.ctx, cancel = context.WithTimeout(c.ctx, seconds(*opts.TimeoutSeconds))
		defer cancel()
	}
	s, err := selectObjects(c.res, c.namespace, opts)
	if err != nil {
		return err
	}
	page, err := c.selectedPage(opts, s)
	if err != nil {
		return err
	}
	meta, err := metaOf(page, s)
	if err != nil {
		return err
	}
	if format.As == negotiate.Metadata {
		return c.listNotObject()
	}
	size := c.sizeOf(len(page.Entries))
	if size <= deferThreshold {
		return c.answerList(format, page, meta)
	}
	// The memory of the response that is not shared with the cache.
	private := size
	if format.Media == negotiate.Protobuf {
		private = 0
	}
	request.SendLater(c.w, private, func() {
		if err := c.answerList(format, page, meta); err != nil {
			c.Error(c.w, c.req, err)
		}
	})
	return nil
}

// metaOf returns the list metadata of a page.
func metaOf(page *store.Page, s selected) (tableMeta, error) {
	meta := tableMeta{revision: page.Revision, remaining: -1}
	if page.Next == "" {
		return meta, nil
	}
	var err error
	if meta.next, err = request.EncodeContinue(page.Next, s.prefix, page.Revision); err != nil {
		return tableMeta{}, err
	}
	if !s.filtered && page.Remaining > 0 {
		meta.remaining = page.Remaining
	}
	return meta, nil
}

// typeName returns upstream's Go type of a kind, which occurs in the errors of negotiation.
func (c *call) typeName(kind string) string {
	if c.res.Custom != nil {
		if kind == c.res.ListKind {
			return "*unstructured.UnstructuredList"
		}
		return "*unstructured.Unstructured"
	}
	return "*" + internalPackage(c.res.Group) + "." + kind
}

// listNotObject returns the error for requesting a list as the metadata of a single object.
func (c *call) listNotObject() error {
	return negotiate.NotAcceptable(fmt.Sprintf("you requested PartialObjectMetadata, but the requested object is a list (%s)", c.typeName(c.res.ListKind)))
}

// objectNotList returns the error for requesting a single object as a list of metadata.
func (c *call) objectNotList() error {
	if c.res.Custom != nil {
		return errNotList
	}
	return negotiate.NotAcceptable(fmt.Sprintf("you requested PartialObjectMetadataList, but the requested object is not a list (%s)", c.typeName(c.res.Kind)))
}

// errNotList is upstream's error.
var errNotList = errors.New("content is not a list")

// sizeOf estimates the size of n objects of the resource in bytes.
func (c *call) sizeOf(n int) int {
	_, average, ok := c.res.Collection.Stats()
	if !ok {
		average = 1 << 10
	}
	return n * average
}

// selectedPage waits for a slot if necessary, and reads the objects of a list.
func (c *call) selectedPage(opts *internalversion.ListOptions, s selected) (*store.Page, error) {
	done, err := c.waitToSelect(opts)
	if err != nil {
		return nil, err
	}
	defer done()
	if c.res.Computed() != nil {
		return c.computedPage(s)
	}
	return c.page(opts, s)
}

// waitToSelect waits for a slot if selecting the objects takes long. The caller must call done
// afterwards.
func (c *call) waitToSelect(opts *internalversion.ListOptions) (done func(), err error) {
	const long = 100_000 // evaluated requirements, about five milliseconds
	requirements, _ := opts.LabelSelector.Requirements()
	n, _, _ := c.res.Collection.Stats()
	if n*(len(requirements)+len(opts.FieldSelector.Requirements())) < long {
		return func() {}, nil
	}
	return c.cpuSlots.acquire(c.ctx)
}

// answerList sends a page, in chunks if possible.
func (c *call) answerList(format negotiate.Format, page *store.Page, meta tableMeta) error {
	if format.As != negotiate.Table {
		return corruptList(c.res, page.Entries, c.sendList(format, page.Entries, meta))
	}
	data, err := c.tableOf(format, page, meta)
	if err != nil {
		return corruptList(c.res, page.Entries, err)
	}
	return c.write(format, http.StatusOK, data)
}

func (c *call) tableOf(format negotiate.Format, page *store.Page, meta tableMeta) ([]byte, error) {
	done, err := c.waitToEncode(len(page.Entries))
	if err != nil {
		return nil, err
	}
	defer done()
	rows := make([]tableRow, len(page.Entries))
	for i, e := range page.Entries {
		obj, err := c.res.Read(e)
		if err != nil {
			return nil, err
		}
		rows[i] = tableRow{obj: obj, entry: e}
	}
	return c.appendTable(nil, format, rows, meta, true)
}

// waitToEncode waits for a slot if encoding n objects as JSON takes long. The caller must call done
// afterwards.
func (c *call) waitToEncode(n int) (done func(), err error) {
	if c.sizeOf(n) < slotThreshold {
		return func() {}, nil
	}
	return c.cpuSlots.acquire(c.ctx)
}

// page reads the objects of a list.
//
// https://kubernetes.io/docs/reference/using-api/api-concepts/#semantics-for-get-and-list
func (c *call) page(opts *internalversion.ListOptions, s selected) (*store.Page, error) {
	lo := store.ListOptions{Prefix: s.listPrefix(), Match: s.listMatch(), Index: s.index, Value: s.value, Limit: int(opts.Limit)}
	if opts.Limit < 0 {
		lo.Limit = 0
	}
	revision, err := request.ResourceVersion(opts.ResourceVersion)
	if err != nil {
		return nil, err
	}
	if opts.Continue != "" {
		if lo.From, lo.Revision, err = request.DecodeContinue(opts.Continue, s.prefix); err != nil {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("invalid continue token: %v", err))
		}
		if revision > 0 {
			return nil, apierrors.NewBadRequest("specifying resource version is not allowed when using continue")
		}
		lo.Exact = lo.Revision > 0
		if revision == 0 {
			lo.Limit = 0 // see below
		}
	} else {
		lo.Revision = revision
		switch {
		case revision == 0:
			// A list of any version ignores the limit.
			lo.Limit = 0
		case revision > 0:
			lo.Exact = opts.ResourceVersionMatch == metav1.ResourceVersionMatchExact ||
				opts.ResourceVersionMatch == "" && opts.Limit > 0
		}
	}
	page, err := c.listSoon(c.ctx, lo)
	switch {
	case errors.Is(err, store.ErrTooOld) && opts.Continue != "":
		return nil, c.continueExpired(lo.From, s.prefix)
	case errors.Is(err, store.ErrTooNew):
		return nil, c.tooNew(lo.Revision)
	case err != nil:
		return nil, c.storeError(err, "")
	}
	return page, nil
}

// revisionTimeout is how long a read waits for a revision that does not exist yet.
const revisionTimeout = 3 * time.Second

// listSoon is List with a timeout for revisions that do not exist yet.
func (c *call) listSoon(ctx context.Context, lo store.ListOptions) (*store.Page, error) {
	if lo.Revision <= 0 {
		return c.res.Collection.List(ctx, lo)
	}
	soon, cancel := context.WithTimeout(ctx, revisionTimeout)
	defer cancel()
	page, err := c.res.Collection.List(soon, lo)
	return page, tooNewOnTimeout(soon, err)
}

// tooNewOnTimeout converts the timeout of soon to ErrTooNew.
func tooNewOnTimeout(soon context.Context, err error) error {
	if err != nil && errors.Is(soon.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("%w: %w", store.ErrTooNew, err)
	}
	return err
}

// continueExpired returns the error for an expired continue token, with a token for the rest of the
// list at the latest version.
func (c *call) continueExpired(key, prefix string) error {
	token, err := request.EncodeContinue(key, prefix, -1)
	if err != nil {
		return apierrors.NewResourceExpired("The provided continue parameter is too old to display a consistent list result. You must start a new list without the continue parameter.")
	}
	expired := apierrors.NewResourceExpired("The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter, or use the continue token in this response to retrieve the remainder of the results. Continuing with the provided token results in an inconsistent list - objects that were created, modified, or deleted between the time the first chunk was returned and now may show up in the list.")
	expired.ErrStatus.ListMeta.Continue = token
	return expired
}

func (c *call) tooNew(wanted int64) error {
	// The request's deadline may have passed.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.ctx), revisionTimeout)
	defer cancel()
	current, err := c.res.Collection.Store().CurrentRevision(ctx)
	if err != nil {
		current = 0
	}
	return tooNew(wanted, current)
}

// sendList sends entries as a list. It encodes all items first, so that errors can still be
// reported, and then writes the list in chunks.
func (c *call) sendList(format negotiate.Format, entries []*store.Entry, meta tableMeta) error {
	kind := c.res.List
	metadata := format.As == negotiate.MetadataList
	if metadata {
		kind = partialListKinds[format.Version]
	}
	gathered := itemsOf(len(entries))
	defer gathered.free()
	items := gathered.items
	var err error
	if format.Media == negotiate.Protobuf {
		list := wire.NewProtoList(kind, wire.ListMeta(nil, meta.revision, meta.next, meta.remaining))
		for i, e := range entries {
			item := &items[i]
			if item.data, err = c.rawOf(e, metadata); err != nil {
				return err
			}
			item.revision = e.Revision()
			list.Count(item.data, item.revision)
		}
		return c.writePieces(format, list.Size(), func(p *chunkWriter) {
			p.data = list.Head(p.data)
			for i := range items {
				p.data = list.Item(p.data, items[i].data, items[i].revision)
				p.flush()
			}
			p.data = list.Tail(p.data)
		})
	}
	partial := partialKind(format.Version)
	size, err := c.fillJSON(items, entries, metadata)
	if err != nil {
		return err
	}
	// In lists, only custom resources contain their kind.
	typed := c.res.Object
	head := kind.AppendJSONListHead
	switch {
	case metadata:
		typed = partial
	case c.res.Custom != nil:
		head = kind.AppendJSONListHeadNext
	default:
		typed = nil
	}
	if typed != nil {
		for i := range items {
			size += typed.JSONSize(items[i].data) - len(items[i].data)
		}
	}
	begin := head(nil, meta.revision, meta.next, meta.remaining)
	size += len(begin) + 2
	if len(items) > 0 {
		size--
	}
	none := metadata && len(items) == 0
	if none {
		begin = append(begin[:len(begin)-1], "null}"...)
		size = len(begin)
	}
	write := func(p *chunkWriter) {
		p.data = append(p.data, begin...)
		if none {
			return
		}
		for i, item := range items {
			if i > 0 {
				p.data = append(p.data, ',')
			}
			if typed != nil {
				p.data = typed.AppendJSON(p.data, item.data)
			} else {
				p.data = append(p.data, item.data...)
			}
			p.flush()
		}
		p.data = append(p.data, "]}"...)
	}
	if format.Media == negotiate.YAML || format.Pretty || metadata {
		// These formats need the complete list.
		p := &chunkWriter{data: make([]byte, 0, size)}
		write(p)
		return c.write(format, http.StatusOK, p.data)
	}
	return c.writePieces(format, size, write)
}

// fillJSON encodes entries as JSON, after waiting for a slot if necessary. It returns the total
// size, including a comma after each item.
func (c *call) fillJSON(items []item, entries []*store.Entry, metadata bool) (size int, err error) {
	done, err := c.waitToEncode(len(entries))
	if err != nil {
		return 0, err
	}
	defer done()
	for i, e := range entries {
		if items[i].data, err = c.jsonOf(e, metadata); err != nil {
			return 0, err
		}
		size += len(items[i].data) + 1
	}
	return size, nil
}

// items contains the encoded items of a list in contiguous memory, so that the entries need not be
// accessed twice.
type items struct{ items []item }

type item struct {
	data     []byte
	revision int64 // only for protobuf
}

var itemsPool = sync.Pool{New: func() any { return new(items) }}

// maxItems is the maximum capacity of pooled items.
const maxItems = 1 << 14

func itemsOf(n int) *items {
	i := itemsPool.Get().(*items)
	i.items = slices.Grow(i.items[:0], n)[:n]
	return i
}

func (i *items) free() {
	clear(i.items) // the items keep entries in memory
	if cap(i.items) <= maxItems {
		itemsPool.Put(i)
	}
}

// chunkWriter buffers a response and forwards it in chunks.
type chunkWriter struct {
	data []byte
	to   io.Writer // nil buffers the complete response
	size int       // chunk size
	err  error
}

// pieceSize is the chunk size if each write is sent to the connection. smallSize is the chunk size
// for the server's HTTP/2, which assembles frames itself. Small chunks are better there, because
// data that is copied twice is still in the L1 cache.
const (
	pieceSize = 16 << 10
	smallSize = 2 << 10
)

// flush forwards the buffer if it has reached the chunk size.
func (p *chunkWriter) flush() {
	if p.to != nil && len(p.data) >= p.size {
		p.send()
	}
}

// send forwards the buffer.
func (p *chunkWriter) send() {
	if len(p.data) > 0 && p.err == nil {
		_, p.err = p.to.Write(p.data)
	}
	p.data = p.data[:0]
}

// writePieces sends a response of a known size. Once it has started, errors cannot be reported to
// the client.
func (c *call) writePieces(format negotiate.Format, size int, write func(*chunkWriter)) error {
	if size > compressThreshold && wantsGzip(c.req) && !local(c.req) {
		p := &chunkWriter{data: make([]byte, 0, size)}
		write(p)
		return c.write(format, http.StatusOK, p.data)
	}
	header := c.w.Header()
	header.Set("Content-Type", format.Media.String())
	header.Set("Cache-Control", "no-cache, private")
	header.Set("Content-Length", strconv.Itoa(size))
	c.w.WriteHeader(http.StatusOK)
	p := &chunkWriter{to: c.w, size: pieceSize}
	if c.req.ProtoMajor == 2 {
		p.size = smallSize
	}
	b := getBuffer(min(size, 2*p.size))
	p.data = b.data
	write(p)
	p.send()
	b.data = p.data
	b.free()
	return nil
}
