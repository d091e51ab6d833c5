package progress

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Bar shows how many bytes of something are done as a line on a terminal, which it overwrites. If the output is no
// terminal, it writes a line after each lineInterval. It is safe for concurrent use.
type Bar struct {
	label string
	start time.Time

	mu          sync.Mutex // guards the fields below
	w           io.Writer  // nil after Close
	terminal    bool
	width       int // of the terminal; 0 without one
	done, total int64
	shown       time.Time // when a line was last written; at first the start
}

const (
	// barInterval is the minimum time between two updates of a line on a terminal.
	barInterval = 100 * time.Millisecond
	// lineInterval is the minimum time between two lines without a terminal, and before the first.
	lineInterval = 5 * time.Second
)

// NewBar returns a bar for total bytes, 0 if unknown, that is shown on w.
func NewBar(w io.Writer, label string, total int64) *Bar {
	b := &Bar{label: label, total: total, start: time.Now(), w: w}
	if file, ok := w.(*os.File); ok {
		if size, err := unix.IoctlGetWinsize(int(file.Fd()), unix.TIOCGWINSZ); err == nil {
			b.terminal, b.width = true, int(size.Col)
			return b
		}
	}
	b.shown = b.start
	return b
}

// Set shows that done of total bytes are done. A total of 0 keeps the previous one.
func (b *Bar) Set(done, total int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.done = done
	if total > 0 {
		b.total = total
	}
	b.show()
}

// show writes the line, unless that was done recently. The caller must hold mu.
func (b *Bar) show() {
	interval := lineInterval
	if b.terminal {
		interval = barInterval
	}
	if b.w == nil || time.Since(b.shown) < interval {
		return
	}
	b.shown = time.Now()
	text := barText(b.label, b.done, b.total, time.Since(b.start), b.width)
	if b.terminal {
		fmt.Fprintf(b.w, "\r\x1b[K%s", text)
	} else {
		fmt.Fprintln(b.w, text)
	}
}

// Close removes the line from the terminal. The bar writes nothing after it.
func (b *Bar) Close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.w != nil && b.terminal && !b.shown.IsZero() {
		fmt.Fprint(b.w, "\r\x1b[K")
	}
	b.w = nil
}

// Reader returns a reader of r that advances the bar by what was read.
func (b *Bar) Reader(r io.Reader) io.Reader { return &barReader{r, b} }

type barReader struct {
	io.Reader
	bar *Bar
}

func (r *barReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	r.bar.mu.Lock()
	defer r.bar.mu.Unlock()
	r.bar.done += int64(n)
	r.bar.show()
	return n, err
}

// barText returns a line that is shorter than width, the width of the terminal.
func barText(label string, done, total int64, took time.Duration, width int) string {
	const cells = 24
	numbers := fmt.Sprintf("%.1f MB", float64(done)/1e6)
	bar := ""
	if total > 0 {
		part := min(1, float64(done)/float64(total))
		filled := int(part * cells)
		bar = "[" + strings.Repeat("#", filled) + strings.Repeat(" ", cells-filled) + "] "
		numbers = fmt.Sprintf("%3.0f %% of %.1f MB", part*100, float64(total)/1e6)
	}
	if seconds := took.Seconds(); seconds > 0 {
		numbers += fmt.Sprintf(", %.1f MB/s", float64(done)/1e6/seconds)
	}
	if width > 0 && len(label)+len(bar)+len(numbers)+1 >= width {
		bar = ""
	}
	if room := width - len(bar) - len(numbers) - 2; width > 0 && len(label) > room {
		label = label[:max(room, 0)]
	}
	return label + " " + bar + numbers
}
