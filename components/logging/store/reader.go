package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"hyperkube/components/logging/record"
)

func unmarshal(data []byte, v any) error { return json.Unmarshal(data, v) }

// Entry is a stored record.
type Entry struct {
	// Seq is the sequence number of the record. Numbers have no gaps, but the oldest records are removed.
	Seq    uint64
	Source *record.Source
	record.Record
}

// Batch is a part of the records of a store, in the order in which they were appended.
type Batch struct {
	Entries []Entry
	// Next is the sequence number behind the batch, and NextByte the number of bytes of all records before it.
	Next, NextByte uint64
	// Removed is the number of records that were removed from the store before they could be read.
	Removed uint64
}

// Reader reads the records of a store in the order in which they were appended. It is not safe for concurrent use.
type Reader struct {
	store *Store
	next  uint64 // sequence number of the next record
	file  *os.File
	path  string // of file
	at    int64  // offset of the next frame in file
	raw   []byte // the last block
}

// NewReader returns a Reader that begins with the record next. The caller must call Close.
func (s *Store) NewReader(next uint64) *Reader { return &Reader{store: s, next: next} }

// Close releases the resources of the Reader.
func (r *Reader) Close() {
	if r.file != nil {
		r.file.Close()
		r.file = nil
	}
}

// Next returns the records of the next block. It waits until there is one or ctx is done. The texts are valid until the next call.
func (r *Reader) Next(ctx context.Context) (Batch, error) {
	for {
		changed := r.store.Changed()
		b, err := r.TryNext()
		if err != nil || b.Next > 0 {
			return b, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return Batch{}, context.Cause(ctx)
		}
	}
}

// TryNext is like Next, but returns an empty Batch, whose Next is 0, if there is no block yet.
func (r *Reader) TryNext() (Batch, error) {
	for {
		v := r.store.view(r.next)
		if v.seg == nil {
			return Batch{}, nil
		}
		var removed uint64
		if r.next < v.firstSeq {
			removed, r.next = v.firstSeq-r.next, v.firstSeq
		}
		if r.path != v.seg.path || r.file == nil {
			r.Close()
			f, err := os.Open(v.seg.path)
			if errors.Is(err, fs.ErrNotExist) {
				r.next -= removed
				continue // removed in the meantime
			}
			if err != nil {
				return Batch{}, fmt.Errorf("reading log store: %w", err)
			}
			r.file, r.path, r.at = f, v.seg.path, 0
		}
		b, err := r.block(v)
		if err != nil {
			// The segment is damaged. Skip it, or wait if it is the last one.
			r.store.cfg.Log.Error("segment of the log store is damaged; its remaining records are not sent to sinks and clients that follow logs, no retry", "file", v.seg.path, "err", err)
			b = Batch{Next: v.endSeq, NextByte: v.endByte, Removed: v.endSeq - r.next}
		}
		b.Removed += removed
		r.next = b.Next
		return b, nil
	}
}

// view is the state of a segment at one time.
type view struct {
	seg              *segment
	size             int64
	firstSeq, endSeq uint64
	endByte          uint64
}

// view returns the segment with the record seq, or the first one after it. Its seg is nil if there is no such record yet.
func (s *Store) view(seq uint64) view {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range s.segments {
		if g.endSeq > max(seq, g.firstSeq) {
			return view{seg: g, size: g.size, firstSeq: g.firstSeq, endSeq: g.endSeq, endByte: g.firstByte + uint64(g.rawBytes)}
		}
	}
	return view{}
}

// Behind returns the number of bytes of the stored records behind those of a Batch, whose NextByte is nextByte.
func (s *Store) Behind(nextByte uint64) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.nextByte - min(nextByte, s.nextByte)
}

// block reads frames of the segment up to the block with the record r.next and returns its records from that one on.
func (r *Reader) block(v view) (Batch, error) {
	for r.at < v.size {
		var head [frameHeader]byte
		if _, err := r.file.ReadAt(head[:], r.at); err != nil {
			return Batch{}, err
		}
		length := int64(uint32(head[1]) | uint32(head[2])<<8 | uint32(head[3])<<16 | uint32(head[4])<<24)
		if length > maxFrame || r.at+frameHeader+length > v.size {
			return Batch{}, errCorrupt
		}
		if head[0] != frameBlock {
			r.at += frameHeader + length
			continue
		}
		frame := make([]byte, frameHeader+length)
		if _, err := r.file.ReadAt(frame, r.at); err != nil {
			return Batch{}, err
		}
		_, payload, size, err := nextFrame(frame)
		if err != nil {
			return Batch{}, err
		}
		r.at += int64(size)
		h, data, err := decodeHeader(payload, false)
		if err != nil {
			return Batch{}, err
		}
		if h.firstSeq+uint64(h.count) <= r.next {
			continue
		}
		if r.raw, err = r.store.codec.decompress(h, data, r.raw); err != nil {
			return Batch{}, err
		}
		return r.decode(v.seg, h)
	}
	return Batch{}, errCorrupt
}

// decode returns the records of a block, whose raw data is in r.raw.
func (r *Reader) decode(seg *segment, h *blockHeader) (Batch, error) {
	sources, err := r.store.sourcesOf(seg, h)
	if err != nil {
		return Batch{}, err
	}
	b := Batch{Next: h.firstSeq + uint64(h.count), NextByte: h.firstByte + uint64(h.rawLen)}
	d := decoder{b: r.raw}
	for i := range h.count {
		index, rec := d.record()
		if d.bad || index < 0 || index >= len(sources) {
			return Batch{}, errCorrupt
		}
		if seq := h.firstSeq + uint64(i); seq >= r.next {
			b.Entries = append(b.Entries, Entry{Seq: seq, Source: sources[index], Record: rec})
		}
	}
	return b, nil
}

// sourcesOf returns the sources of a block of the segment.
func (s *Store) sourcesOf(seg *segment, h *blockHeader) ([]*record.Source, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]*record.Source, len(h.sources))
	for i, id := range h.sources {
		if out[i] = seg.sources[id]; out[i] == nil {
			return nil, errCorrupt
		}
	}
	return out, nil
}
