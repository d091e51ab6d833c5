package filters

import (
	"net/http"
	"sync"
	"unicode/utf8"

	utilnet "k8s.io/apimachinery/pkg/util/net"
)

// Bounds of what warnings may take of an answer's header, in runes. When they
// would take more, each is cut short.
const (
	mostWarnings = 4 * 1024
	mostWarning  = 256
)

// warnings are told in the header of an answer, each once.
type warnings struct {
	mu      sync.Mutex
	header  http.Header
	told    []toldWarning
	written int
	cutting bool
}

type toldWarning struct{ agent, text string }

// AddWarning adds a warning, which is lost once the header has been sent.
func (r *warnings) AddWarning(agent, text string) {
	if text == "" {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, t := range r.told {
		if t.text == text {
			return
		}
	}
	if r.cutting && r.written >= mostWarnings {
		return
	}
	r.told = append(r.told, toldWarning{agent, text})
	if r.cutting || r.written+utf8.RuneCountInString(text) <= mostWarnings {
		r.write(agent, text)
		return
	}
	r.cutting = true
	r.written = 0
	r.header.Del("Warning")
	for _, t := range r.told {
		r.write(t.agent, t.text)
	}
}

func (r *warnings) write(agent, text string) {
	n := utf8.RuneCountInString(text)
	if r.cutting && n > mostWarning {
		text = string([]rune(text)[:mostWarning])
		n = mostWarning
	}
	header, err := utilnet.NewWarningHeader(299, agent, text)
	if err != nil {
		return // not something a header can hold
	}
	r.written += n
	r.header.Add("Warning", header)
}
