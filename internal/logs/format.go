package logs

import (
	"fmt"
	"io"
	"log/slog"

	"github.com/spf13/pflag"
)

// Format is the format of a component's log, as its flag --logging-format has it: text,
// unless it was set to json. It implements pflag.Value.
//
// https://kubernetes.io/docs/concepts/cluster-administration/system-logs/
type Format struct{ json bool }

// Flag adds --logging-format to f.
func (o *Format) Flag(f *pflag.FlagSet) {
	f.Var(o, "logging-format", "Format of the log on standard error: text or json.")
}

// String is the flag's value.
func (o *Format) String() string {
	if o.json {
		return "json"
	}
	return "text"
}

// Type is how pflag calls it.
func (*Format) Type() string { return "string" }

// Set takes a value.
func (o *Format) Set(text string) error {
	if text != "" && text != "text" && text != "json" {
		return fmt.Errorf("unsupported log format: %s, known are json and text", text)
	}
	o.json = text == "json"
	return nil
}

// New makes a logger that writes what is of level at least to w.
func (o *Format) New(w io.Writer, level slog.Leveler) *slog.Logger {
	options := &slog.HandlerOptions{Level: level}
	if o.json {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}
