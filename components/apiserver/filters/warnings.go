package filters

import (
	"net/http"
	"sync"
	"unicode/utf8"

	utilnet "k8s.io/apimachinery/pkg/util/net"
)

// Limits of the warnings in a response header, in runes. If the total would be exceeded, each
// warning is truncated.
const (
	maxWarningRunes       = 4 * 1024
	truncatedWarningRunes = 256
)

// warnings collects the warnings of a request in the Warning header of its response, each text
// once.
type warnings struct {
	mu      sync.Mutex
	header  http.Header
	added   []addedWarning
	written int
	// cutting means that the total size has been exceeded, so that each warning is truncated.
	cutting bool
}

// addedWarning is a warning that was added to the response: its text, and the agent that has issued it, which may be
// empty.
type addedWarning struct{ agent, text string }

// AddWarning adds a warning to the response header, unless text is empty or was added before. It has no effect after
// the header has been sent. When the total size would exceed the limit, all warnings are truncated; then further ones
// are dropped.
func (r *warnings) AddWarning(agent, text string) {
	if text == "" {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, t := range r.added {
		if t.text == text {
			return
		}
	}
	if r.cutting && r.written >= maxWarningRunes {
		return
	}
	r.added = append(r.added, addedWarning{agent, text})
	if r.cutting || r.written+utf8.RuneCountInString(text) <= maxWarningRunes {
		r.write(agent, text)
		return
	}
	r.cutting = true
	r.written = 0
	r.header.Del("Warning")
	for _, t := range r.added {
		r.write(t.agent, t.text)
	}
}

// write adds one warning to the header, truncated if truncation has started. A text that is not a valid header value
// is omitted. The caller holds mu.
func (r *warnings) write(agent, text string) {
	n := utf8.RuneCountInString(text)
	if r.cutting && n > truncatedWarningRunes {
		text = string([]rune(text)[:truncatedWarningRunes])
		n = truncatedWarningRunes
	}
	header, err := utilnet.NewWarningHeader(299, agent, text)
	if err != nil {
		return // not a valid header value
	}
	r.written += n
	r.header.Add("Warning", header)
}
