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

// output contains the encoded frames that are to be sent on a connection, and the state of the
// encoder. The connection's lock guards it.
type output struct {
	// out contains frames that are not being written yet. spare is a reusable buffer.
	out, spare []byte
	// openFrame is the offset in out of the last frame, if that is a DATA frame that can grow, and
	// negative otherwise. The frame belongs to stream openStream.
	openFrame  int
	openStream uint32
	// writing is set while a goroutine writes to the connection. When the write is done, that
	// goroutine also writes, or passes on, the frames that were appended meanwhile.
	writing bool
	// waiting is the number of goroutines that wait for window or buffer space.
	waiting int
	// writeDeadline is the current write deadline.
	writeDeadline time.Time

	encoder *hpack.Encoder
	block   bytes.Buffer
}

// init creates the header compressor and sets the output to empty. It must be called before any other method.
func (o *output) init() {
	o.openFrame = -1
	o.encoder = hpack.NewEncoder(&o.block)
	o.encoder.SetMaxDynamicTableSizeLimit(headerTable)
}

const (
	frameHeader = 9
	// flushThreshold and maxBuffered limit the bytes of encoded frames in the output buffer. At flushThreshold, the
	// frames are written to the connection. At maxBuffered, handlers block until the client has read enough.
	flushThreshold = 32 << 10
	maxBuffered    = 128 << 10
	// maxExcess is the number of bytes by which the responses to control frames, such as PING, may
	// exceed maxBuffered when the client does not read. Then the connection is closed.
	maxExcess = 1 << 20
)

// buffers is the pool of the buffers in which connections collect the frames that they are about to write.
var buffers = sync.Pool{New: func() any { return new([]byte) }}

// maxKept is the maximum capacity, in bytes, of an output buffer that is returned to the pool.
const maxKept = 512 << 10

// keepBuffer returns b to buffers, for use by other connections, unless it is too large. The caller
// must not use it afterwards.
func keepBuffer(b []byte) {
	if cap(b) > 0 && cap(b) <= maxKept {
		b = b[:0]
		buffers.Put(&b)
	}
}

// discard drops the frames that have not been written, because the connection has failed or
// everything is written.
func (o *output) discard() { o.out, o.spare, o.openFrame = nil, nil, -1 }

// grow appends as much of p as possible to the payload of the last DATA frame, which must be open, up to a payload of
// most bytes. It returns the number of appended bytes, which is 0 if the frame is full.
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

// appendFrame appends the header of a frame to the output, which also ends the last DATA frame. The caller appends
// the payload of length bytes.
func (o *output) appendFrame(length int, kind http2.FrameType, flags http2.Flags, stream uint32) {
	if o.out == nil {
		o.out = *buffers.Get().(*[]byte)
	}
	o.openFrame = -1
	o.out = append(o.out, byte(length>>16), byte(length>>8), byte(length), byte(kind), byte(flags),
		byte(stream>>24), byte(stream>>16), byte(stream>>8), byte(stream))
}

// appendSettings appends the server's SETTINGS frame, and enlarges the receive window of the
// connection.
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

// appendWindowUpdate appends a frame that allows the client to send n more bytes on a stream, or on
// the connection if stream is 0.
func (o *output) appendWindowUpdate(stream uint32, n int64) {
	o.appendFrame(4, http2.FrameWindowUpdate, 0, stream)
	o.out = binary.BigEndian.AppendUint32(o.out, uint32(n))
}

// appendReset appends a frame (RST_STREAM) that aborts a stream. code is the reason for the client.
func (o *output) appendReset(stream uint32, code http2.ErrCode) {
	o.appendFrame(4, http2.FrameRSTStream, 0, stream)
	o.out = binary.BigEndian.AppendUint32(o.out, uint32(code))
}

// appendGoAway appends a frame after which the client opens no new streams on the connection. last
// is the last stream that the server handles, code the reason.
func (o *output) appendGoAway(last uint32, code http2.ErrCode) {
	o.appendFrame(8, http2.FrameGoAway, 0, 0)
	o.out = binary.BigEndian.AppendUint32(o.out, last)
	o.out = binary.BigEndian.AppendUint32(o.out, uint32(code))
}

// appendPing appends a ping, or with ack the response to the client's ping.
func (o *output) appendPing(ack bool, data [8]byte) {
	var flags http2.Flags
	if ack {
		flags = http2.FlagPingAck
	}
	o.appendFrame(8, http2.FramePing, flags, 0)
	o.out = append(o.out, data[:]...)
}

// answerSoon sends the response to a control frame, such as PING or SETTINGS, in another goroutine. It returns an
// error, which closes the connection, if more than maxBuffered+maxExcess bytes are waiting because the client sends
// control frames without reading the responses. The caller holds c.mu.
func (c *conn) answerSoon() error {
	if len(c.out) > maxBuffered+maxExcess {
		return http2.ConnectionError(http2.ErrCodeEnhanceYourCalm)
	}
	c.sendSoon()
	return nil
}

// sendSoon makes another goroutine write the frames in the output buffer. It does nothing if a goroutine is writing
// already, the buffer is empty or the connection has failed. The goroutine that reads from the connection uses it,
// because it must not block in a write. The caller holds c.mu.
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

// send writes the frames in the output buffer. If another goroutine is writing, it returns immediately, and that
// goroutine writes them. Frames that are appended during the write are left to another goroutine. The caller holds
// c.mu, which is released during the write.
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

// sendAll is like send, but also writes frames that are appended during the write. A worker uses it after its handler
// has returned. The caller holds c.mu.
func (c *conn) sendAll() {
	if c.writing || len(c.out) == 0 || c.failed {
		return
	}
	c.writing = true
	c.writeAll()
}

// writeAll writes until the output buffer is empty. The caller holds c.mu and has set writing.
func (c *conn) writeAll() {
	for len(c.out) > 0 && !c.failed {
		c.writeOut()
	}
	c.releaseBuffers()
}

// releaseBuffers records that no goroutine writes, and returns the empty buffers to the pool. The
// caller holds c.mu.
func (c *conn) releaseBuffers() {
	c.writing = false
	keepBuffer(c.out)
	keepBuffer(c.spare)
	c.discard()
	c.maybeClose()
}

// writeOut writes the frames that are in the output buffer now. If the write fails, it closes the
// connection. The caller holds c.mu, which is released during the write, and has set writing.
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

// write encrypts data and writes it to the TCP connection, with the write timeout of the server, if there is one.
// Only one goroutine may call it at a time. The caller does not hold c.mu.
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
