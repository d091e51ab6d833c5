package h2

import (
	"bytes"
	"encoding/binary"
	"errors"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// output contains the frames to send. The connection's lock guards it.
type output struct {
	// out contains frames that are not being written yet. spare is a reusable buffer.
	out, spare []byte
	// openFrame is the offset in out of the last frame, if that is a DATA frame that can grow, and
	// negative otherwise. The frame belongs to stream openStream.
	openFrame  int
	openStream uint32
	// writing is set while a goroutine writes. It checks out again when it is done.
	writing bool
	// waiting is the number of goroutines that wait for window or buffer space.
	waiting int
	// writeDeadline is the current write deadline.
	writeDeadline time.Time

	encoder *hpack.Encoder
	block   bytes.Buffer
}

func (o *output) init() {
	o.openFrame = -1
	o.encoder = hpack.NewEncoder(&o.block)
	o.encoder.SetMaxDynamicTableSizeLimit(headerTable)
}

const (
	frameHeader = 9
	// flushThreshold is the number of framed bytes that triggers a write. When out contains maxBuffered
	// bytes, handlers block.
	flushThreshold = 32 << 10
	maxBuffered    = 128 << 10
	// maxExcess is the number of bytes by which responses to control frames may exceed maxBuffered
	// when the client does not read.
	maxExcess = 1 << 20
)

// buffers is the pool of output buffers.
var buffers = sync.Pool{New: func() any { return new([]byte) }}

// maxKept is the maximum size of a buffer that is returned to the pool.
const maxKept = 512 << 10

func keepBuffer(b []byte) {
	if cap(b) > 0 && cap(b) <= maxKept {
		b = b[:0]
		buffers.Put(&b)
	}
}

// discard drops frames that will not be written.
func (o *output) discard() { o.out, o.spare, o.openFrame = nil, nil, -1 }

// grow appends bytes to the open DATA frame, up to a payload of most bytes.
func (o *output) grow(p []byte, most int) (n int) {
	head := o.out[o.openFrame:]
	length := int(head[0])<<16 | int(head[1])<<8 | int(head[2])
	n = min(len(p), most-length)
	if n <= 0 {
		return 0
	}
	length += n
	head[0], head[1], head[2] = byte(length>>16), byte(length>>8), byte(length)
	o.out = append(o.out, p[:n]...)
	return n
}

// appendFrame appends the header of a frame with length payload bytes.
func (o *output) appendFrame(length int, kind http2.FrameType, flags http2.Flags, stream uint32) {
	if o.out == nil {
		o.out = *buffers.Get().(*[]byte)
	}
	o.openFrame = -1
	o.out = append(o.out, byte(length>>16), byte(length>>8), byte(length), byte(kind), byte(flags),
		byte(stream>>24), byte(stream>>16), byte(stream>>8), byte(stream))
}

func (c *conn) appendSettings() {
	settings := []http2.Setting{
		{ID: http2.SettingMaxFrameSize, Val: maxFrame},
		{ID: http2.SettingMaxConcurrentStreams, Val: c.server.cfg.MaxStreams},
		{ID: http2.SettingMaxHeaderListSize, Val: c.server.maxHeaders()},
		{ID: http2.SettingInitialWindowSize, Val: receiveWindow},
	}
	c.appendFrame(6*len(settings), http2.FrameSettings, 0, 0)
	for _, s := range settings {
		c.out = binary.BigEndian.AppendUint16(c.out, uint16(s.ID))
		c.out = binary.BigEndian.AppendUint32(c.out, s.Val)
	}
	c.appendWindowUpdate(0, receiveWindow-defaultWindow)
}

func (o *output) appendWindowUpdate(stream uint32, n int64) {
	o.appendFrame(4, http2.FrameWindowUpdate, 0, stream)
	o.out = binary.BigEndian.AppendUint32(o.out, uint32(n))
}

func (o *output) appendReset(stream uint32, code http2.ErrCode) {
	o.appendFrame(4, http2.FrameRSTStream, 0, stream)
	o.out = binary.BigEndian.AppendUint32(o.out, uint32(code))
}

func (o *output) appendGoAway(last uint32, code http2.ErrCode) {
	o.appendFrame(8, http2.FrameGoAway, 0, 0)
	o.out = binary.BigEndian.AppendUint32(o.out, last)
	o.out = binary.BigEndian.AppendUint32(o.out, uint32(code))
}

func (o *output) appendPing(ack bool, data [8]byte) {
	var flags http2.Flags
	if ack {
		flags = http2.FlagPingAck
	}
	o.appendFrame(8, http2.FramePing, flags, 0)
	o.out = append(o.out, data[:]...)
}

// answerSoon is like sendSoon for responses to control frames. It returns an error if the client
// sends such frames without reading the responses.
func (c *conn) answerSoon() error {
	if len(c.out) > maxBuffered+maxExcess {
		return http2.ConnectionError(http2.ErrCodeEnhanceYourCalm)
	}
	c.sendSoon()
	return nil
}

// sendSoon writes the framed bytes in another goroutine. The caller holds c.mu.
func (c *conn) sendSoon() {
	if c.writing || len(c.out) == 0 || c.failed {
		return
	}
	c.writing = true
	go func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.writeAll()
	}()
}

// send writes the framed bytes, unless another goroutine is writing, which then writes them too.
// The caller holds c.mu, which is released during the write.
func (c *conn) send() {
	if c.writing || len(c.out) == 0 || c.failed {
		return
	}
	c.writing = true
	c.writeOut()
	if len(c.out) > 0 && !c.failed {
		// Frames that were appended during the write are left to another goroutine, so that the
		// caller does not wait for them.
		c.writing = false
		c.sendSoon()
		return
	}
	c.releaseBuffers()
}

// sendAll is like send, but also writes frames that are appended during the write.
func (c *conn) sendAll() {
	if c.writing || len(c.out) == 0 || c.failed {
		return
	}
	c.writing = true
	c.writeAll()
}

func (c *conn) writeAll() {
	for len(c.out) > 0 && !c.failed {
		c.writeOut()
	}
	c.releaseBuffers()
}

// releaseBuffers releases the buffers when there is nothing to write.
func (c *conn) releaseBuffers() {
	c.writing = false
	keepBuffer(c.out)
	keepBuffer(c.spare)
	c.discard()
	c.maybeClose()
}

// writeOut writes the bytes in out. The caller holds c.mu, which is released during the write.
func (c *conn) writeOut() {
	data := c.out
	c.out, c.spare, c.openFrame = c.spare, nil, -1
	c.mu.Unlock()
	err := c.write(data)
	c.mu.Lock()
	c.spare = data[:0]
	if err != nil {
		c.fail()
		_ = c.tls.NetConn().Close() // makes the reader fail
	}
	c.wakeAll()
}

// write writes data to the connection. Calls must not overlap.
func (c *conn) write(data []byte) error {
	timeout := c.server.cfg.WriteTimeout
	if timeout > 0 {
		// Setting the deadline costs more than reading the clock, so do not do it before each
		// write.
		if now := time.Now(); c.writeDeadline.Sub(now) < timeout*3/4 {
			c.writeDeadline = now.Add(timeout)
			if err := c.tls.SetWriteDeadline(c.writeDeadline); err != nil {
				return err
			}
		}
	}
	if c.corked == nil {
		_, err := c.tls.Write(data)
		return err
	}
	c.corked.hold()
	_, err := c.tls.Write(data)
	return errors.Join(err, c.corked.release(timeout))
}
