package logging

import (
	"encoding/json"
	"log/slog"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

func TestFormat(t *testing.T) {
	for _, tc := range []struct {
		flag, begins string
		ok, json     bool
	}{
		{"", "time=", true, false}, {"text", "time=", true, false}, {"json", "{", true, true}, {"xml", "", false, false},
	} {
		var o Format
		set := pflag.NewFlagSet("x", pflag.ContinueOnError)
		o.Flag(set)
		if err := set.Parse([]string{"--logging-format=" + tc.flag}); (err == nil) != tc.ok {
			t.Errorf("%q: %v", tc.flag, err)
		}
		if !tc.ok {
			continue
		}
		var out strings.Builder
		o.New(&out, slog.LevelInfo).Info("hello", "a", 1)
		if !strings.HasPrefix(out.String(), tc.begins) || json.Valid([]byte(out.String())) != tc.json {
			t.Errorf("%q: %s", tc.flag, out.String())
		}
	}
}
