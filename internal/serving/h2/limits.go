package h2

import (
	"bufio"
	"time"

	"golang.org/x/net/http2"
)

const (
	// earlyPeriod is the maximum age of a stream at which a reset before the response counts as early.
	earlyPeriod = time.Second
	// maxEarlyResets is the number of streams that a client may reset early in a burst (or MaxStreams,
	// if that is larger). One more is allowed per earlyResetDecay.
	maxEarlyResets  = 250
	earlyResetDecay = 40 * time.Millisecond

	// maxOverhead is how many overhead frames a client may send in a burst,
	// and one more for each overheadEvery.
	maxOverhead   = 10_000
	overheadEvery = time.Millisecond
	// streamOverhead and dataOverhead are how many overhead frames each request,
	// and each piece of a response, entitle the client to.
	streamOverhead, dataOverhead = 8, 4
	// maxContinuations is how many CONTINUATION frames a header block may have.
	// Header blocks are limited to about 1 MiB, which is 64 frames of the
	// smallest maximum size.
	maxContinuations = 128
)

// decayingCount counts recent events: its number decreases with time, but not below zero.
type decayingCount struct {
	n int
	// at is the time of the last decrease.
	at time.Time
}

// decay decreases the number by one for each period that has passed since the last decrease.
func (d *decayingCount) decay(period time.Duration) {
	if past := time.Since(d.at) / period; past > 0 {
		d.n = max(0, d.n-int(min(past, 1<<20)))
		d.at = time.Now()
	}
}

// limits counts events of one connection with which a client could overload the server. The
// connection's lock guards it.
type limits struct {
	// earlyResets counts the streams that were reset early.
	earlyResets decayingCount
	// overheadFrames counts the overhead frames of the client (see overhead), less those that its
	// requests have allowed.
	overheadFrames decayingCount
}

// resetEarly reports whether a stream that is being closed was opened only recently and has no
// response yet. The caller holds c.mu.
func (st *stream) resetEarly() bool {
	return !st.answer.headerFramed && time.Since(st.opened) < earlyPeriod
}

// countEarlyReset counts a stream that the client reset early, or that the server reset because of an invalid frame.
// It returns an error, which closes the connection, if there are more than maxEarlyResets (or maxStreams) such
// streams in a short time. The limit of open streams does not protect the server against them: the request is
// processed for a while after the reset, and the client may open the next stream immediately. maxStreams is the
// maximum number of open streams. The caller holds the lock.
func (l *limits) countEarlyReset(maxStreams uint32) error {
	l.earlyResets.decay(earlyResetDecay)
	if l.earlyResets.n++; l.earlyResets.n > max(maxEarlyResets, int(maxStreams)) {
		return http2.ConnectionError(http2.ErrCodeEnhanceYourCalm)
	}
	return nil
}

// overhead counts n overhead frames: frames that cost CPU but neither make a request nor carry a body, such as PING,
// SETTINGS, PRIORITY, WINDOW_UPDATE, empty DATA frames, and frames on closed streams. It returns an error when the
// client sends too many of them. The caller holds the lock.
func (l *limits) overhead(n int) error {
	l.overheadFrames.n += n
	if l.overheadFrames.n <= maxOverhead {
		return nil // the usual case does not read the clock
	}
	l.overheadFrames.decay(overheadEvery)
	if l.overheadFrames.n > maxOverhead {
		return http2.ConnectionError(http2.ErrCodeEnhanceYourCalm)
	}
	return nil
}

// allowOverhead allows the client n more overhead frames, because each request and response
// normally causes some. The caller holds the connection's lock.
func (l *limits) allowOverhead(n int) { l.overheadFrames.n = max(0, l.overheadFrames.n-n) }

// recentIDs contains the last 64 stream identifiers that were added: those of streams that were
// reset recently, for which the client may still send frames.
type recentIDs struct {
	ids  [64]uint32
	next int
}

// add adds an identifier in place of the oldest one.
func (r *recentIDs) add(id uint32) {
	r.ids[r.next] = id
	r.next = (r.next + 1) % len(r.ids)
}

// has reports whether id is one of the last 64 that were added.
func (r *recentIDs) has(id uint32) bool {
	for _, known := range r.ids {
		if known == id {
			return true
		}
	}
	return false
}

// frameReader reads the bytes of frames for http2.Framer, and limits the number of CONTINUATION
// frames of a header block. Without the limit a client could make the framer decode an endless
// header block, because the framer reads all CONTINUATION frames before it returns.
type frameReader struct {
	in *bufio.Reader
	// left is the number of bytes of the current frame that have not been read.
	left int
	// kind is the type of the current frame.
	kind http2.FrameType
	// continuations is the number of successive CONTINUATION frames up to the current one.
	continuations int
}

// Read implements io.Reader. It does not read beyond the end of a frame. It returns a connection error if a header
// block has more than maxContinuations CONTINUATION frames.
func (r *frameReader) Read(p []byte) (int, error) {
	if r.left == 0 {
		head, err := r.in.Peek(frameHeader)
		if err != nil {
			return 0, err
		}
		r.left = frameHeader + (int(head[0])<<16 | int(head[1])<<8 | int(head[2]))
		r.kind = http2.FrameType(head[3])
		if r.kind != http2.FrameContinuation {
			r.continuations = 0
		} else if r.continuations++; r.continuations > maxContinuations {
			return 0, http2.ConnectionError(http2.ErrCodeEnhanceYourCalm)
		}
	}
	n, err := r.in.Read(p[:min(len(p), r.left)])
	r.left -= n
	return n, err
}
