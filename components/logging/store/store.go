// Package store keeps the log records of a node on its disk, up to a limit, and searches them.
//
// Records are collected in memory and written as compressed blocks to segments, files of a few megabytes. The oldest segments are removed
// when the limit is reached. A block also contains the positions in the log files behind its records. So a record and the position
// after it are stored atomically: after the process was killed, it continues where its last block ends, without loss or duplicates.
//
// There is no index in memory or on disk besides the times and sources of each segment: a search reads the segments that can match,
// and decompresses the blocks that can match.
package store

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"hyperkube/components/logging/record"
	"hyperkube/internal/base/broadcast"
)

// Config configures a Store.
type Config struct {
	// Dir is the directory of the segments. Open creates it.
	Dir string
	// MaxBytes is the maximum size of all segments. Zero means 200 MB.
	MaxBytes int64
	// SegmentBytes is the size of the records, before compression, from which on a segment is complete. Zero means 8 MiB.
	SegmentBytes int64
	// Log receives warnings. Nil means slog's default.
	Log *slog.Logger
}

// BlockBytes is the size of records in memory from which on the caller of Append should call Flush.
const BlockBytes = 256 << 10

// Store is the log store of a node. Append, Advance, Forget and Flush must be called by one goroutine. All other methods are safe for
// concurrent use.
type Store struct {
	cfg    Config
	codec  *codec
	change broadcast.Broadcast // sent after each block

	mu       sync.Mutex // guards the fields below, and the content of segments
	segments []*segment // by sequence number; the last one is written to
	// positions are the positions behind the last block, and moved those that have changed since.
	positions, moved map[string]record.Position
	pending          pendingBlock
	file             *os.File // of the last segment
	nextSeq          uint64   // sequence number of the next record
	nextByte         uint64   // bytes of all records before nextSeq
	stats            Stats
}

// Stats are counters of a Store since it was opened, and its size.
type Stats struct {
	// Records and Bytes count the records in blocks that were written, and the bytes of their texts.
	Records, Bytes uint64
	// Size is the size of all segments.
	Size int64
	// Failures counts attempts to write a block that failed.
	Failures uint64
	// NextSeq is the sequence number of the next record after the last block, and NextByte the size of all records before it since the store
	// was created.
	NextSeq, NextByte uint64
}

// segment is a file with the records of a range of sequence numbers.
type segment struct {
	path             string
	size             int64  // of complete frames
	firstSeq, endSeq uint64 // half-open range
	firstByte        uint64
	rawBytes         int64
	minTime, maxTime int64 // of the records; minTime > maxTime if there are none
	sources          map[uint64]*record.Source
	ids              map[*record.Source]uint64
}

// pendingBlock has the records that are not in a block yet.
type pendingBlock struct {
	raw              []byte
	bytes            uint64 // of texts
	count            int
	minTime, maxTime int64
	sources          []*record.Source // index in records
	index            map[*record.Source]int
}

// Open opens the store in cfg.Dir and repairs it: an incomplete block at the end of the last segment is removed. A segment with an
// invalid block keeps the blocks before it.
func Open(cfg Config) (*Store, error) {
	if cfg.Dir == "" {
		return nil, errors.New("log store: a directory is required")
	}
	if cfg.MaxBytes == 0 {
		cfg.MaxBytes = 200 << 20
	}
	if cfg.SegmentBytes == 0 {
		cfg.SegmentBytes = 8 << 20
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("creating log store: %w", err)
	}
	c, err := newCodec()
	if err != nil {
		return nil, err
	}
	s := &Store{cfg: cfg, codec: c, positions: map[string]record.Position{}, moved: map[string]record.Position{}}
	if err := s.load(); err != nil {
		return nil, err
	}
	return s, nil
}

// extension is the extension of the files of segments. Their names are the sequence number of their first record.
const extension = ".seg"

// load reads all segments.
func (s *Store) load() error {
	entries, err := os.ReadDir(s.cfg.Dir)
	if err != nil {
		return fmt.Errorf("reading log store: %w", err)
	}
	for _, e := range entries { // sorted by name
		if strings.HasSuffix(e.Name(), extension+".tmp") {
			_ = os.Remove(filepath.Join(s.cfg.Dir, e.Name())) // it is overwritten otherwise
			continue
		}
		name, ok := strings.CutSuffix(e.Name(), extension)
		if !ok {
			continue
		}
		first, err := strconv.ParseUint(name, 10, 64)
		if err != nil {
			continue
		}
		path := filepath.Join(s.cfg.Dir, e.Name())
		data, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("reading log store: %w", err)
		}
		seg := newSegment(path, first)
		seg.firstByte = s.nextByte
		s.scan(seg, data)
		if seg.size < int64(len(data)) {
			s.cfg.Log.Warn("log store contains an incomplete block, usually because the process was killed; the block is removed, and its records are read again from the log files if these still exist, no retry",
				"file", path, "offset", seg.size, "bytes", int64(len(data))-seg.size)
			if err := os.Truncate(path, seg.size); err != nil {
				return fmt.Errorf("repairing log store: %w", err)
			}
		}
		s.segments = append(s.segments, seg)
		s.nextSeq = max(s.nextSeq, seg.endSeq)
		s.stats.Size += seg.size
	}
	s.stats.NextSeq, s.stats.NextByte = s.nextSeq, s.nextByte
	return nil
}

func newSegment(path string, first uint64) *segment {
	return &segment{path: path, firstSeq: first, endSeq: first, minTime: 1<<63 - 1, maxTime: -1 << 63, sources: map[uint64]*record.Source{}, ids: map[*record.Source]uint64{}}
}

// scan reads the frames in data, the content of the file of seg, and updates seg and the positions. It stops at the first invalid frame.
func (s *Store) scan(seg *segment, data []byte) {
	for rest := data; len(rest) > 0; {
		kind, payload, size, err := nextFrame(rest)
		if err != nil {
			return
		}
		switch kind {
		case frameSource:
			var f sourceFrame
			if unmarshal(payload, &f) != nil || f.Source == nil {
				return
			}
			seg.sources[f.ID] = f.Source
			seg.ids[f.Source] = f.ID
		case framePositions:
			all := map[string]record.Position{}
			if unmarshal(payload, &all) != nil {
				return
			}
			s.positions = all
		case frameBlock:
			h, _, err := decodeHeader(payload, true)
			if err != nil {
				return
			}
			seg.add(h)
			s.nextByte = max(s.nextByte, h.firstByte+uint64(h.rawLen))
			maps.Copy(s.positions, h.positions)
		}
		seg.size += int64(size)
		rest = rest[size:]
	}
}

// add updates the segment for a block.
func (g *segment) add(h *blockHeader) {
	if h.count == 0 {
		return
	}
	g.endSeq = h.firstSeq + uint64(h.count)
	g.rawBytes += int64(h.rawLen)
	g.minTime, g.maxTime = min(g.minTime, h.minTime), max(g.maxTime, h.maxTime)
}

// Positions returns the position of each source behind the records that are stored. The caller owns the result.
func (s *Store) Positions() map[string]record.Position {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.positions)
}

// Append adds a record of a source. The store copies the text. src must be the same pointer for records of the same source, because each
// new pointer is stored as a new source.
func (s *Store) Append(src *record.Source, r record.Record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := &s.pending
	i, ok := p.index[src]
	if !ok {
		if p.index == nil {
			p.index = map[*record.Source]int{}
		}
		i = len(p.sources)
		p.index[src], p.sources = i, append(p.sources, src)
	}
	if p.count == 0 {
		p.minTime, p.maxTime = r.Time, r.Time
	}
	p.minTime, p.maxTime = min(p.minTime, r.Time), max(p.maxTime, r.Time)
	p.raw = appendRecord(p.raw, i, r)
	p.bytes += uint64(len(r.Text))
	p.count++
	s.nextSeq++
}

// Advance sets the position of a source behind the records that were appended. It is stored together with them.
func (s *Store) Advance(key string, p record.Position) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.positions[key] != p {
		s.moved[key] = p
	}
}

// Forget removes the position of a source whose log files were deleted.
func (s *Store) Forget(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.positions, key)
	delete(s.moved, key)
}

// Pending returns the size of the records and the number of positions that are only in memory.
func (s *Store) Pending() (bytes, positions int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.pending.raw), len(s.moved)
}

// Flush writes the records and positions in memory as a block. After an error they remain in memory, and the caller tries again later.
// If the disk is full, Flush removes old segments until the block fits or only the last one remains.
func (s *Store) Flush() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pending.count == 0 && len(s.moved) == 0 {
		return nil
	}
	for {
		err := s.flushLocked()
		if err == nil {
			break
		}
		if !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EDQUOT) || len(s.segments) < 2 {
			s.stats.Failures++
			return fmt.Errorf("writing log store: %w", err)
		}
		if err := s.removeOldestLocked(); err != nil {
			s.stats.Failures++
			return err
		}
	}
	for s.stats.Size > s.cfg.MaxBytes && len(s.segments) > 1 {
		if err := s.removeOldestLocked(); err != nil {
			// The block is stored. The next Flush tries again.
			s.cfg.Log.Warn("removing the oldest segment of the log store failed; the store uses more disk space than its limit, retrying with the next block", "err", err)
			break
		}
	}
	s.change.Send()
	return nil
}

// flushLocked writes the pending block. If it fails, the segment is as before.
func (s *Store) flushLocked() error {
	seg, err := s.segmentLocked()
	if err != nil {
		return err
	}
	var out []byte
	p := &s.pending
	h := blockHeader{
		firstSeq: s.nextSeq - uint64(p.count), firstByte: s.nextByte, count: p.count, rawLen: len(p.raw), minTime: p.minTime, maxTime: p.maxTime, positions: s.moved,
	}
	defined := map[uint64]*record.Source{}
	for _, src := range p.sources {
		id, ok := seg.ids[src]
		if !ok {
			id = uint64(len(seg.sources) + len(defined))
			out = appendFrame(out, frameSource, marshal(sourceFrame{ID: id, Source: src}))
			defined[id] = src
		}
		h.sources = append(h.sources, id)
	}
	payload := h.append(nil)
	if p.count > 0 {
		payload = s.codec.enc.EncodeAll(p.raw, payload)
	}
	out = appendFrame(out, frameBlock, payload)
	if _, err := s.file.WriteAt(out, seg.size); err != nil {
		return errors.Join(err, s.file.Truncate(seg.size))
	}
	seg.size += int64(len(out))
	s.stats.Size += int64(len(out))
	for id, src := range defined {
		seg.sources[id], seg.ids[src] = src, id
	}
	seg.add(&h)
	maps.Copy(s.positions, s.moved)
	s.moved = map[string]record.Position{}
	s.nextByte += uint64(len(p.raw))
	s.stats.Records += uint64(p.count)
	s.stats.Bytes += p.bytes
	s.stats.NextSeq, s.stats.NextByte = s.nextSeq, s.nextByte
	s.pending = pendingBlock{raw: p.raw[:0]}
	return nil
}

// segmentLocked returns the segment to write to: the last one, or a new one if that is complete.
func (s *Store) segmentLocked() (*segment, error) {
	if n := len(s.segments); n > 0 {
		last := s.segments[n-1]
		if last.rawBytes < s.cfg.SegmentBytes && last.size < s.cfg.SegmentBytes && last.size < max(s.cfg.MaxBytes/4, 1) {
			if s.file != nil {
				return last, nil
			}
			f, err := os.OpenFile(last.path, os.O_WRONLY, 0)
			s.file = f
			return last, err
		}
	}
	first := s.nextSeq - uint64(s.pending.count)
	seg := newSegment(filepath.Join(s.cfg.Dir, fmt.Sprintf("%020d%s", first, extension)), first)
	seg.firstByte = s.nextByte
	if n := len(s.segments); n > 0 && s.segments[n-1].path == seg.path {
		// The last segment has no records but only positions. It is replaced.
		s.stats.Size -= s.segments[n-1].size
		s.segments = s.segments[:n-1]
	}
	head := appendFrame(nil, framePositions, marshal(s.positions))
	// A temporary name, so that there is never a segment without positions.
	f, err := os.OpenFile(seg.path+".tmp", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	_, err = f.Write(head)
	if err == nil {
		err = os.Rename(seg.path+".tmp", seg.path)
	}
	if err != nil {
		f.Close()
		return nil, errors.Join(err, os.Remove(seg.path+".tmp"))
	}
	if s.file != nil {
		s.file.Close()
	}
	s.file = f
	seg.size = int64(len(head))
	s.stats.Size += seg.size
	s.segments = append(s.segments, seg)
	return seg, nil
}

// removeOldestLocked removes the oldest segment.
func (s *Store) removeOldestLocked() error {
	oldest := s.segments[0]
	if err := os.Remove(oldest.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing segment of log store: %w", err)
	}
	s.segments = slices.Delete(s.segments, 0, 1)
	s.stats.Size -= oldest.size
	return nil
}

// Stats returns the counters of the store.
func (s *Store) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stats
}

// Changed returns a channel that is closed after the next block was written.
func (s *Store) Changed() <-chan struct{} { return s.change.Next() }

// Close writes what is in memory and closes the store. No other method may be called afterwards.
func (s *Store) Close() error {
	err := s.Flush()
	if s.file != nil {
		err = errors.Join(err, s.file.Close())
	}
	s.codec.dec.Close()
	return errors.Join(err, s.codec.enc.Close())
}
