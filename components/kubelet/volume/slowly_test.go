package volume

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestSlowly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told []string
		s := newSlowly("uid/volumes/v", func(message string) { told = append(told, message) })
		s.files.Store(7)
		time.Sleep(slowAfter + slowEvery + time.Second)
		s.stop()
		time.Sleep(10 * slowEvery)
		if len(told) != 2 || !strings.HasPrefix(told[0], "Setting volume ownership for uid/volumes/v is taking longer than expected, consider using OnRootMismatch") ||
			told[1] != "Setting volume ownership for uid/volumes/v, processed 7 files." {
			t.Errorf("%q", told)
		}
	})
	newSlowly("v", nil).stop()
}
