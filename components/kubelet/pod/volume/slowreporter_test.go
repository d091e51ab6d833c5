package volume

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestSlowReports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var messages []string
		s := newSlowReporter("uid/volumes/v", func(message string) { messages = append(messages, message) })
		s.files.Store(7)
		time.Sleep(slowAfter + slowEvery + time.Second)
		s.stop()
		time.Sleep(10 * slowEvery)
		if len(messages) != 2 || !strings.HasPrefix(messages[0], "Setting volume ownership for uid/volumes/v is taking longer than expected, consider using OnRootMismatch") ||
			messages[1] != "Setting volume ownership for uid/volumes/v, processed 7 files." {
			t.Errorf("%q", messages)
		}
	})
	newSlowReporter("v", nil).stop()
}
