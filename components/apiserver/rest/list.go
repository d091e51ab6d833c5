package rest

import (
	"context"
	"io"
	"net/http"
	"slices"
	"strconv"
	"sync"

	"hyperkube/components/apiserver/negotiate"
	"hyperkube/components/apiserver/request"
	"hyperkube/components/apiserver/wire"
	"hyperkube/internal/store"
)

// lister handles list requests. deletecollection uses it to send its list.
type lister struct{ *call }

// list handles a list request. A large list is encoded and sent after the request has released its flow control
// seats, because the client may read slowly. The parameter timeoutSeconds limits the time of reading the objects.
func (c lister) list() error {
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
	page, err := c.reader().selectedPage(opts, s)
	if err != nil {
		return err
	}
	meta, err := metaOf(page, s)
	if err != nil {
		return err
	}
	if format.As == negotiate.Metadata {
		return c.responder().listNotObject()
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

// metaOf returns the list metadata of a page that s selects: its resource version, the continue token for the next
// page, if there is one, and the number of remaining objects, which is unknown (-1) if the client has sent a
// selector.
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

// sizeOf estimates the encoded size, in bytes, of n objects of the resource from the average size of cached ones, or
// from 1 KiB if the cache is not filled.
func (c lister) sizeOf(n int) int {
	_, average, ok := c.res.Collection.Stats()
	if !ok {
		average = 1 << 10
	}
	return n * average
}

// answerList sends a page as a list or a table. Lists are sent in chunks if the format allows it. Objects that cannot
// be decoded result in an error that names them.
func (c lister) answerList(format negotiate.Format, page *store.Page, meta tableMeta) error {
	if format.As != negotiate.Table {
		return corruptList(c.res, page.Entries, c.sendList(format, page.Entries, meta))
	}
	data, err := c.tableOf(format, page, meta)
	if err != nil {
		return corruptList(c.res, page.Entries, err)
	}
	return c.responder().write(format, http.StatusOK, data)
}

// tableOf returns the encoded table for the entries of a page. Large tables wait for a CPU slot, and fail with an
// error 429 if too many requests of the user wait.
func (c lister) tableOf(format negotiate.Format, page *store.Page, meta tableMeta) ([]byte, error) {
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
	return c.responder().appendTable(nil, format, rows, meta, true)
}

// waitToEncode waits for a CPU slot if encoding n objects as JSON takes long. The caller must call
// done afterwards, also if no slot was needed.
func (c lister) waitToEncode(n int) (done func(), err error) {
	if c.sizeOf(n) < slotThreshold {
		return func() {}, nil
	}
	return c.cpuSlots.acquire(c.ctx)
}

// sendList sends entries as a list of objects or of their metadata. It encodes all items first, so that errors can
// still be reported, and then writes the list in chunks.
func (c lister) sendList(format negotiate.Format, entries []*store.Entry, meta tableMeta) error {
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
			if item.data, err = c.responder().rawOf(e, metadata); err != nil {
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
		return c.responder().write(format, http.StatusOK, p.data)
	}
	return c.writePieces(format, size, write)
}

// fillJSON sets the data of items to the JSON of entries, or to that of their metadata. For large
// lists it waits for a CPU slot first. It returns the total size in bytes, including a comma after
// each item.
func (c lister) fillJSON(items []item, entries []*store.Entry, metadata bool) (size int, err error) {
	done, err := c.waitToEncode(len(entries))
	if err != nil {
		return 0, err
	}
	defer done()
	for i, e := range entries {
		if items[i].data, err = c.responder().jsonOf(e, metadata); err != nil {
			return 0, err
		}
		size += len(items[i].data) + 1
	}
	return size, nil
}

// items contains the encoded items of a list in contiguous memory, so that the list can be measured
// and then written without accessing the entries twice. Get one from itemsOf and return it with
// free.
type items struct{ items []item }

// item is the encoded form, JSON or protobuf, of one item of a list.
type item struct {
	data     []byte
	revision int64 // only for protobuf
}

// itemsPool contains items for reuse. See itemsOf and items.free.
var itemsPool = sync.Pool{New: func() any { return new(items) }}

// maxItems is the maximum capacity of items that are returned to the pool. Larger ones are left to
// the garbage collector.
const maxItems = 1 << 14

// itemsOf returns items with room for n items. The caller must call free.
func itemsOf(n int) *items {
	i := itemsPool.Get().(*items)
	i.items = slices.Grow(i.items[:0], n)[:n]
	return i
}

// free returns i to the pool. The caller must not use it afterwards.
func (i *items) free() {
	clear(i.items) // the items keep entries in memory
	if cap(i.items) <= maxItems {
		itemsPool.Put(i)
	}
}

// chunkWriter collects an encoded response in data and forwards it to a writer in chunks.
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

// flush forwards the collected data if it has reached the chunk size. Encoders call it after each
// item.
func (p *chunkWriter) flush() {
	if p.to != nil && len(p.data) >= p.size {
		p.send()
	}
}

// send forwards the collected data, regardless of its size. After an error, the data is discarded.
func (p *chunkWriter) send() {
	if len(p.data) > 0 && p.err == nil {
		_, p.err = p.to.Write(p.data)
	}
	p.data = p.data[:0]
}

// writePieces sends a response whose size in bytes is known. write produces the response, in
// chunks. Once the first chunk has been sent, errors cannot be reported to the client. A large
// response to a remote client is compressed if the client accepts this.
func (c lister) writePieces(format negotiate.Format, size int, write func(*chunkWriter)) error {
	if size > compressThreshold && wantsGzip(c.req) && !local(c.req) {
		p := &chunkWriter{data: make([]byte, 0, size)}
		write(p)
		return c.responder().write(format, http.StatusOK, p.data)
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
