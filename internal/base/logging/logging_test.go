package logging

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"go.uber.org/zap"
	"k8s.io/klog/v2"
)

// TestSetDefault checks that klog writes to the default logger, also after that has changed.
func TestSetDefault(t *testing.T) {
	before := slog.Default()
	t.Cleanup(func() { slog.SetDefault(before) })
	for range 2 {
		var to bytes.Buffer
		SetDefault(slog.New(slog.NewTextHandler(&to, nil)))
		klog.InfoS("of a library", "count", 2)
		klog.ErrorS(errors.New("no"), "failed")
		klog.V(2).InfoS("only for a debugger")
		slog.Info("our own")
		for _, want := range []string{`level=INFO msg="of a library" count=2`, "level=ERROR msg=failed", `msg="our own"`} {
			if !strings.Contains(to.String(), want) {
				t.Errorf("no %s in\n%s", want, to.String())
			}
		}
		if strings.Contains(to.String(), "debugger") {
			t.Error(to.String())
		}
	}
}

func TestZap(t *testing.T) {
	var to bytes.Buffer
	log := Zap(slog.New(slog.NewTextHandler(&to, nil)), zap.WarnLevel, func(m string) bool { return m == "harmless" })
	log.With(zap.String("b", "1"), zap.Int("a", 2)).Warn("careful", zap.Error(errors.New("no")))
	log.Info("unimportant")
	log.Warn("harmless")
	if got := to.String(); !strings.Contains(got, "level=WARN msg=careful a=2 b=1 error=no\n") || strings.Count(got, "\n") != 1 {
		t.Errorf("%s", got)
	}
	Zap(nil, zap.WarnLevel, nil).Error("discarded")
}
