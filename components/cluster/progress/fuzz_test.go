package progress

import (
	"strings"
	"testing"
)

// FuzzSteps reads whatever a started process may tell of its steps.
func FuzzSteps(f *testing.F) {
	f.Add(`{"text":"a"}` + "\n" + `{"ready":true}`)
	f.Add("panic: everything\n")
	f.Fuzz(func(_ *testing.T, text string) {
		_ = receiveSteps(strings.NewReader(text), func(s Step) { _ = human(s.Took) })
	})
}
