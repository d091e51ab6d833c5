package rest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
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
	page, err := c.page(opts, s)
	if err != nil {
		return err
	}
	meta := tableMeta{revision: page.Revision, remaining: -1}
	if page.Next != "" {
		if meta.next, err = request.EncodeContinue(page.Next, s.prefix, page.Revision); err != nil {
			return err
		}
		if !s.filtered && page.Remaining > 0 {
			meta.remaining = page.Remaining
		}
	}
	switch format.As {
	case negotiate.Table:
		rows := make([]tableRow, len(page.Entries))
		for i, e := range page.Entries {
			obj, err := c.res.Read(e)
			if err != nil {
				return err
			}
			rows[i] = tableRow{obj: obj, entry: e}
		}
		return c.sendTable(format, http.StatusOK, rows, meta)
	case negotiate.Metadata:
		return apierrors.NewBadRequest(fmt.Sprintf("you requested PartialObjectMetadata, but the requested object is a list (%s)", c.res.ListKind))
	}
	return c.sendList(format, page.Entries, meta)
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
		if revision > 0 {
			return nil, apierrors.NewBadRequest("specifying resource version is not allowed when using continue")
		}
		if lo.From, lo.Revision, err = request.DecodeContinue(opts.Continue, s.prefix); err != nil {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("invalid continue token: %v", err))
		}
		lo.Exact = lo.Revision > 0
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
	items := make([][]byte, len(entries))
	var err error
	if format.Media == negotiate.Protobuf {
		list := wire.NewProtoList(kind, wire.ListMeta(nil, meta.revision, meta.next, meta.remaining))
		for i, e := range entries {
			if items[i], err = c.rawOf(e, metadata); err != nil {
				return err
			}
			list.Count(items[i], e.Revision())
		}
		return c.writePieces(format, list.Size(), func(p *pieces) {
			p.data = list.Head(p.data)
			for i, e := range entries {
				p.data = list.Item(p.data, items[i], e.Revision())
				p.flush()
			}
			p.data = list.Tail(p.data)
		})
	}
	partial := partialKind(format.Version)
	size := 0
	for i, e := range entries {
		if items[i], err = c.jsonOf(e, metadata); err != nil {
			return err
		}
		size += len(items[i]) + 1
		if metadata {
			size += len(partial.AppendJSON(nil, []byte("{}")))
		}
	}
	head := kind.AppendJSONListHead(nil, meta.revision, meta.next, meta.remaining)
	size += len(head) + 2
	if len(items) > 0 {
		size--
	}
	write := func(p *pieces) {
		p.data = append(p.data, head...)
		for i, item := range items {
			if i > 0 {
				p.data = append(p.data, ',')
			}
			if metadata {
				p.data = partial.AppendJSON(p.data, item)
			} else {
				p.data = append(p.data, item...)
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

// pieces collects an answer and passes it on whenever there is enough.
type pieces struct {
	data []byte
	to   io.Writer // nil collects all
	err  error
}

// pieceSize is what one HTTP/2 frame carries if it and its header of nine
// bytes are to fill one TLS record. Go cuts longer writes into frames of 16384
// bytes, each of which then takes two records and two system calls.
const pieceSize = 16<<10 - 9

// flush passes on all whole pieces.
func (p *pieces) flush() {
	if p.to == nil || len(p.data) < pieceSize {
		return
	}
	rest := p.data
	for len(rest) >= pieceSize {
		p.write(rest[:pieceSize])
		rest = rest[pieceSize:]
	}
	p.data = p.data[:copy(p.data, rest)]
}

// send passes on all there is.
func (p *pieces) send() {
	p.flush()
	if len(p.data) > 0 {
		p.write(p.data)
	}
	p.data = p.data[:0]
}

func (p *pieces) write(data []byte) {
	if p.err == nil {
		_, p.err = p.to.Write(data)
	}
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
	b := getBuffer(min(size, 2*pieceSize))
	p := &pieces{data: b.data, to: c.w}
	write(p)
	p.send()
	b.data = p.data
	b.free()
	return nil
}
