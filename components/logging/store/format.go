package store

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/klauspost/compress/zstd"

	"hyperkube/components/logging/record"
)

// A segment is a file of frames. A frame is its kind (1 byte), the length of the payload and the CRC-32C of kind and payload (4 bytes each,
// little endian), and the payload.
const (
	// frameSource defines a source: a JSON object sourceFrame.
	frameSource = 'S'
	// framePositions has the positions of all sources, as JSON. It is the first frame of a segment, so that older segments can be removed.
	framePositions = 'P'
	// frameBlock has records and the positions behind them.
	frameBlock = 'B'
)

// frameHeader is the size of the header of a frame, and maxFrame the largest payload.
const (
	frameHeader = 9
	maxFrame    = 16 << 20
)

var (
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
	errCorrupt = errors.New("corrupt block")
)

// appendFrame appends a frame to b.
func appendFrame(b []byte, kind byte, payload []byte) []byte {
	b = append(b, kind)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(payload)))
	b = binary.LittleEndian.AppendUint32(b, checksum(kind, payload))
	return append(b, payload...)
}

func checksum(kind byte, payload []byte) uint32 {
	return crc32.Update(crc32.Checksum([]byte{kind}, castagnoli), castagnoli, payload)
}

// nextFrame returns the first frame of b and its size. It returns errCorrupt if the frame is incomplete or its checksum is wrong.
func nextFrame(b []byte) (kind byte, payload []byte, size int, err error) {
	if len(b) < frameHeader {
		return 0, nil, 0, errCorrupt
	}
	length := binary.LittleEndian.Uint32(b[1:])
	if length > maxFrame || int(length) > len(b)-frameHeader {
		return 0, nil, 0, errCorrupt
	}
	payload = b[frameHeader : frameHeader+int(length)]
	if checksum(b[0], payload) != binary.LittleEndian.Uint32(b[5:]) {
		return 0, nil, 0, errCorrupt
	}
	return b[0], payload, frameHeader + int(length), nil
}

// sourceFrame is the payload of frameSource. IDs are unique in a segment.
type sourceFrame struct {
	ID     uint64         `json:"id"`
	Source *record.Source `json:"source"`
}

// blockHeader is the beginning of the payload of frameBlock. Compressed records follow.
type blockHeader struct {
	firstSeq  uint64 // sequence number of the first record
	firstByte uint64 // bytes of all records before, since the store was created
	count     int    // number of records
	rawLen    int    // size of the records before compression
	minTime   int64  // times of the oldest and newest record
	maxTime   int64
	sources   []uint64 // IDs of the sources of the records
	positions map[string]record.Position
}

// append appends the encoded header to b.
func (h *blockHeader) append(b []byte) []byte {
	b = binary.AppendUvarint(b, h.firstSeq)
	b = binary.AppendUvarint(b, h.firstByte)
	b = binary.AppendUvarint(b, uint64(h.count))
	b = binary.AppendUvarint(b, uint64(h.rawLen))
	b = binary.AppendVarint(b, h.minTime)
	b = binary.AppendVarint(b, h.maxTime)
	b = binary.AppendUvarint(b, uint64(len(h.sources)))
	for _, id := range h.sources {
		b = binary.AppendUvarint(b, id)
	}
	b = binary.AppendUvarint(b, uint64(len(h.positions)))
	for key, p := range h.positions {
		b = binary.AppendUvarint(b, uint64(len(key)))
		b = append(b, key...)
		b = binary.AppendUvarint(b, p.File.Generation)
		b = binary.LittleEndian.AppendUint64(b, p.File.Hash)
		b = binary.AppendUvarint(b, uint64(p.File.HashLen))
		b = binary.AppendUvarint(b, uint64(p.Offset))
	}
	return b
}

// decoder reads numbers and bytes from a buffer. After an error all methods return zero values.
type decoder struct {
	b   []byte
	bad bool
}

func (d *decoder) uvarint() uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 || d.bad {
		d.bad = true
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) varint() int64 {
	v, n := binary.Varint(d.b)
	if n <= 0 || d.bad {
		d.bad = true
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) bytes(n uint64) []byte {
	if d.bad || n > uint64(len(d.b)) {
		d.bad = true
		return nil
	}
	out := d.b[:n:n]
	d.b = d.b[n:]
	return out
}

// decodeHeader decodes the header of a block and returns the compressed records after it. withPositions is false if the caller does not
// need the positions, which are then skipped.
func decodeHeader(payload []byte, withPositions bool) (*blockHeader, []byte, error) {
	d := decoder{b: payload}
	h := &blockHeader{firstSeq: d.uvarint(), firstByte: d.uvarint(), count: int(d.uvarint()), rawLen: int(d.uvarint()), minTime: d.varint(), maxTime: d.varint()}
	n := d.uvarint()
	if n > uint64(len(d.b)) || h.rawLen < 0 || h.rawLen > maxFrame || h.count < 0 || h.count > h.rawLen {
		return nil, nil, errCorrupt
	}
	h.sources = make([]uint64, n)
	for i := range h.sources {
		h.sources[i] = d.uvarint()
	}
	if withPositions {
		h.positions = map[string]record.Position{}
	}
	for range d.uvarint() {
		key := d.bytes(d.uvarint())
		p := record.Position{File: record.FileID{Generation: d.uvarint()}}
		if hash := d.bytes(8); hash != nil {
			p.File.Hash = binary.LittleEndian.Uint64(hash)
		}
		p.File.HashLen, p.Offset = uint32(d.uvarint()), int64(d.uvarint())
		if d.bad {
			return nil, nil, errCorrupt
		}
		if withPositions {
			h.positions[string(key)] = p
		}
	}
	if d.bad {
		return nil, nil, errCorrupt
	}
	return h, d.b, nil
}

// appendRecord appends an encoded record to b. index is the index of its source in the block.
func appendRecord(b []byte, index int, r record.Record) []byte {
	b = binary.AppendUvarint(b, uint64(index))
	b = binary.AppendVarint(b, r.Time)
	b = append(b, byte(r.Stream))
	b = binary.AppendUvarint(b, uint64(len(r.Text)))
	return append(b, r.Text...)
}

// record decodes one record and the index of its source. The text refers to the buffer.
func (d *decoder) record() (index int, r record.Record) {
	index = int(d.uvarint())
	r.Time = d.varint()
	if s := d.bytes(1); s != nil {
		r.Stream = record.Stream(s[0])
	}
	r.Text = d.bytes(d.uvarint())
	return index, r
}

// codec compresses and decompresses blocks. It is safe for concurrent use.
type codec struct {
	enc *zstd.Encoder
	dec *zstd.Decoder
}

func newCodec() (*codec, error) {
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(512<<10), zstd.WithLowerEncoderMem(true))
	if err != nil {
		return nil, fmt.Errorf("creating compressor: %w", err)
	}
	dec, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(0), zstd.WithDecoderMaxMemory(maxFrame), zstd.WithDecoderLowmem(true))
	if err != nil {
		return nil, fmt.Errorf("creating decompressor: %w", err)
	}
	return &codec{enc: enc, dec: dec}, nil
}

// decompress returns the records of a block. It uses the capacity of buf.
func (c *codec) decompress(h *blockHeader, data, buf []byte) ([]byte, error) {
	if h.count == 0 {
		return nil, nil
	}
	raw, err := c.dec.DecodeAll(data, buf[:0])
	if err != nil || len(raw) != h.rawLen {
		return nil, errCorrupt
	}
	return raw, nil
}

func marshal(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // the types have no values that JSON cannot represent
	}
	return b
}
