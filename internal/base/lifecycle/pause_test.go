package lifecycle

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		began := time.Now()
		if !Pause(ctx, 2*time.Second) || time.Since(began) != 2*time.Second {
			t.Errorf("a pause of 2s was cut short, or took %v", time.Since(began))
		}
		if Pause(ctx, 2*time.Second) || time.Since(began) != 3*time.Second {
			t.Errorf("a pause continued after its context was canceled, until %v", time.Since(began))
		}
	})
}
