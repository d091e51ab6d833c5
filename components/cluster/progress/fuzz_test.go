package progress

import (
	"strings"
	"testing"
)

// FuzzSteps decodes the steps of a background process.
func FuzzSteps(f *testing.F) {
	f.Add(`{"text":"a"}` + "\n" + `{"ready":true}`)
	f.Add("panic: everything\n")
	f.Fuzz(func(_ *testing.T, text string) {
		_ = receiveSteps(strings.NewReader(text), func(s Step) { _ = formatDuration(s.Took) })
	})
}
