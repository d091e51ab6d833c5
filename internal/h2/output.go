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

// output is what is to be sent. The connection's lock guards it.
type output struct {
	// out are frames that nobody is writing yet; spare is a buffer.
	out, spare []byte
	// open is where in out its last frame begins, if that is one of data,
	// which may grow; else negative. It is of stream openOf.
	open   int
	openOf uint32
	// writing: somebody is, and will look here again.
	writing bool
	// waiting is how many wait for windows or for room in out.
	waiting int
	// until is the deadline of writes.
	until time.Time

	encoder *hpack.Encoder
	block   bytes.Buffer
}

func (o *output) init() {
	o.open = -1
	o.encoder = hpack.NewEncoder(&o.block)
	o.encoder.SetMaxDynamicTableSizeLimit(headerTable)
}

const (
	frameHeader = 9
	// fullAt is from how much on what is framed is written at once; more
	// than mostOut waits.
	fullAt  = 32 << 10
	mostOut = 128 << 10
	// tooMuch is how far answers to a client's frames may go beyond that,
	// which it does not take.
	tooMuch = 1 << 20
)

// buffers are those of connections that have something to send.
var buffers = sync.Pool{New: func() any { return new([]byte) }}

// maxKept is up to which size a buffer is kept.
const maxKept = 512 << 10

func keepBuffer(b []byte) {
	if cap(b) > 0 && cap(b) <= maxKept {
		b = b[:0]
		buffers.Put(&b)
	}
}

// discard drops what nobody will write.
func (o *output) discard() { o.out, o.spare, o.open = nil, nil, -1 }

// grow appends to the frame of data that is open, up to a size.
func (o *output) grow(p []byte, most int) (n int) {
	head := o.out[o.open:]
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

// appendFrame begins a frame of so many bytes.
func (o *output) appendFrame(length int, kind http2.FrameType, flags http2.Flags, stream uint32) {
	if o.out == nil {
		o.out = *buffers.Get().(*[]byte)
	}
	o.open = -1
	o.out = append(o.out, byte(length>>16), byte(length>>8), byte(length), byte(kind), byte(flags),
		byte(stream>>24), byte(stream>>16), byte(stream>>8), byte(stream))
}

func (c *conn) appendSettings() {
	settings := []http2.Setting{
		{ID: http2.SettingMaxFrameSize, Val: maxFrame},
		{ID: http2.SettingMaxConcurrentStreams, Val: c.server.cfg.MaxStreams},
		{ID: http2.SettingMaxHeaderListSize, Val: c.maxHeaders()},
		{ID: http2.SettingInitialWindowSize, Val: receiveWindow},
	}
	c.appendFrame(6*len(settings), http2.FrameSettings, 0, 0)
	for _, s := range settings {
		c.out = binary.BigEndian.AppendUint16(c.out, uint16(s.ID))
		c.out = binary.BigEndian.AppendUint32(c.out, s.Val)
	}
	c.appendWindowUpdate(0, receiveWindow-usualWindow)
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

// answerSoon is sendSoon for answers to frames; an error when the client asks
// and does not listen.
func (c *conn) answerSoon() error {
	if len(c.out) > mostOut+tooMuch {
		return http2.ConnectionError(http2.ErrCodeEnhanceYourCalm)
	}
	c.sendSoon()
	return nil
}

// sendSoon has what was framed sent by somebody else. The lock is held.
func (c *conn) sendSoon() {
	if c.writing || len(c.out) == 0 || c.gone {
		return
	}
	c.writing = true
	go func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.writeAll()
	}()
}

// send writes what was framed, unless somebody is writing, who will come to it.
// The lock is held, but not meanwhile.
func (c *conn) send() {
	if c.writing || len(c.out) == 0 || c.gone {
		return
	}
	c.writing = true
	c.writeOut()
	if len(c.out) > 0 && !c.gone {
		// What others have framed meanwhile is not for the caller to wait for.
		c.writing = false
		c.sendSoon()
		return
	}
	c.rest()
}

// sendAll is send for those who have time.
func (c *conn) sendAll() {
	if c.writing || len(c.out) == 0 || c.gone {
		return
	}
	c.writing = true
	c.writeAll()
}

func (c *conn) writeAll() {
	for len(c.out) > 0 && !c.gone {
		c.writeOut()
	}
	c.rest()
}

// rest lets buffers go when there is nothing to write.
func (c *conn) rest() {
	c.writing = false
	keepBuffer(c.out)
	keepBuffer(c.spare)
	c.discard()
	c.maybeEnd()
}

// writeOut writes what there is now. The lock is held, but not meanwhile.
func (c *conn) writeOut() {
	data := c.out
	c.out, c.spare, c.open = c.spare, nil, -1
	c.mu.Unlock()
	err := c.write(data)
	c.mu.Lock()
	c.spare = data[:0]
	if err != nil {
		c.fail()
		_ = c.tls.NetConn().Close() // the reader sees it
	}
	c.wakeAll()
}

// write is called by one at a time.
func (c *conn) write(data []byte) error {
	timeout := c.server.cfg.WriteTimeout
	if timeout > 0 {
		// Not before each write: it costs more than looking at the clock.
		if now := time.Now(); c.until.Sub(now) < timeout*3/4 {
			c.until = now.Add(timeout)
			if err := c.tls.SetWriteDeadline(c.until); err != nil {
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
