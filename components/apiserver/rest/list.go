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

// list answers with many objects.
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
		return c.onlyList()
	}
	size := c.sizeOf(len(page.Entries))
	if size <= laterFrom {
		return c.answerList(format, page, meta)
	}
	// What is not shared with the cache is the answer's own.
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

// metaOf is the metadata of a page of what is selected.
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

// typeName is what upstream calls its own Go type of a kind, which errors about
// wishes that cannot be met show.
func (c *call) typeName(kind string) string {
	if c.res.Custom != nil {
		if kind == c.res.ListKind {
			return "*unstructured.UnstructuredList"
		}
		return "*unstructured.Unstructured"
	}
	return "*" + internalPackage(c.res.Group) + "." + kind
}

// onlyList: a list cannot be sent as the metadata of one object.
func (c *call) onlyList() error {
	return negotiate.NotAcceptable(fmt.Sprintf("you requested PartialObjectMetadata, but the requested object is a list (%s)", c.typeName(c.res.ListKind)))
}

// notList: one object cannot be sent as a list of metadata.
func (c *call) notList() error {
	if c.res.Custom != nil {
		return errNotList
	}
	return negotiate.NotAcceptable(fmt.Sprintf("you requested PartialObjectMetadataList, but the requested object is not a list (%s)", c.typeName(c.res.Kind)))
}

// errNotList has upstream's text.
var errNotList = errors.New("content is not a list")

// sizeOf estimates the bytes of so many objects of the resource.
func (c *call) sizeOf(n int) int {
	_, average, ok := c.res.Collection.Stats()
	if !ok {
		average = 1 << 10
	}
	return n * average
}

// selectedPage reads what a list is about, when it is its turn.
func (c *call) selectedPage(opts *internalversion.ListOptions, s selected) (*store.Page, error) {
	done, err := c.selecting(opts)
	if err != nil {
		return nil, err
	}
	defer done()
	if c.res.Computed() != nil {
		return c.computedPage(s)
	}
	return c.page(opts, s)
}

// selecting waits for a turn when selecting objects takes long. Done is called
// when they have been selected.
func (c *call) selecting(opts *internalversion.ListOptions) (done func(), err error) {
	const long = 100_000 // requirements that are looked at, five milliseconds or so
	requirements, _ := opts.LabelSelector.Requirements()
	n, _, _ := c.res.Collection.Stats()
	if n*(len(requirements)+len(opts.FieldSelector.Requirements())) < long {
		return func() {}, nil
	}
	return c.turns.take(c.ctx)
}

// answerList answers with a page. It is sent in pieces if it can be.
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
	done, err := c.making(len(page.Entries))
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

// making waits for a turn to make the JSON of so many objects, if that takes
// long. Done is called when it is made.
func (c *call) making(n int) (done func(), err error) {
	if c.sizeOf(n) < largeWork {
		return func() {}, nil
	}
	return c.turns.take(c.ctx)
}

// page reads what a list is about.
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
			lo.Limit = 0 // as below
		}
	} else {
		lo.Revision = revision
		switch {
		case revision == 0:
			// Whatever the cache has is given whole.
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

// patience is how long a read waits for a revision that is yet to come.
const patience = 3 * time.Second

// listSoon is List, that does not wait long for a revision that may never come.
func (c *call) listSoon(ctx context.Context, lo store.ListOptions) (*store.Page, error) {
	if lo.Revision <= 0 {
		return c.res.Collection.List(ctx, lo)
	}
	soon, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	page, err := c.res.Collection.List(soon, lo)
	return page, late(soon, err)
}

// late makes ErrTooNew of the end of a short wait.
func late(soon context.Context, err error) error {
	if err != nil && errors.Is(soon.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("%w: %w", store.ErrTooNew, err)
	}
	return err
}

// continueExpired tells that the rest of a list can only be had as it is now.
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
	// The request's own time may be over.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.ctx), patience)
	defer cancel()
	current, err := c.res.Collection.Store().CurrentRevision(ctx)
	if err != nil {
		current = 0
	}
	return tooNew(wanted, current)
}

// sendList answers with entries. What an entry needs is gathered first, so
// that an error can still be told; then it is written in pieces.
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
		return c.writePieces(format, list.Size(), func(p *pieces) {
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
	// Objects without a Go type say in lists, too, what they are.
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
	write := func(p *pieces) {
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
		// These need all of it at once.
		p := &pieces{data: make([]byte, 0, size)}
		write(p)
		return c.write(format, http.StatusOK, p.data)
	}
	return c.writePieces(format, size, write)
}

// fillJSON makes the JSON of entries, when it is its turn, and returns how many bytes
// that is with a comma behind each.
func (c *call) fillJSON(items []item, entries []*store.Entry, metadata bool) (size int, err error) {
	done, err := c.making(len(entries))
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

// items are what a list is put together from: what its entries hold, side by side,
// so that the entries themselves are not looked at a second time.
type items struct{ items []item }

type item struct {
	data     []byte
	revision int64 // in protobuf alone
}

var manyItems = sync.Pool{New: func() any { return new(items) }}

// maxItems is up to which length they are kept for later.
const maxItems = 1 << 14

func itemsOf(n int) *items {
	i := manyItems.Get().(*items)
	i.items = slices.Grow(i.items[:0], n)[:n]
	return i
}

func (i *items) free() {
	clear(i.items) // they hold entries
	if cap(i.items) <= maxItems {
		manyItems.Put(i)
	}
}

// pieces collects an answer and passes it on whenever there is enough.
type pieces struct {
	data []byte
	to   io.Writer // nil collects all
	size int       // how much is enough
	err  error
}

// pieceSize is enough where each write becomes one of the connection's.
// The server's HTTP/2 puts frames together itself, so that little is best: what
// is copied twice is then still in the nearest cache.
const (
	pieceSize = 16 << 10
	smallSize = 2 << 10
)

// flush passes on what there is, if it is enough.
func (p *pieces) flush() {
	if p.to != nil && len(p.data) >= p.size {
		p.send()
	}
}

// send passes on all there is.
func (p *pieces) send() {
	if len(p.data) > 0 && p.err == nil {
		_, p.err = p.to.Write(p.data)
	}
	p.data = p.data[:0]
}

// writePieces sends an answer of a known size. Nobody can be told of an error
// once it has begun.
func (c *call) writePieces(format negotiate.Format, size int, write func(*pieces)) error {
	if size > compressFrom && wantsGzip(c.req) && !local(c.req) {
		p := &pieces{data: make([]byte, 0, size)}
		write(p)
		return c.write(format, http.StatusOK, p.data)
	}
	header := c.w.Header()
	header.Set("Content-Type", format.Media.String())
	header.Set("Cache-Control", "no-cache, private")
	header.Set("Content-Length", strconv.Itoa(size))
	c.w.WriteHeader(http.StatusOK)
	p := &pieces{to: c.w, size: pieceSize}
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
