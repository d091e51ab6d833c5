package logging

import (
	"fmt"
	"io"
	"log/slog"

	"github.com/spf13/pflag"
)

// Format is the log format of a component, the value of the flag --logging-format: text (the
// default) or json. It implements pflag.Value.
//
// https://kubernetes.io/docs/concepts/cluster-administration/system-logs/
type Format struct{ json bool }

// Flag adds the flag --logging-format to f. Parsing the command line sets o.
func (o *Format) Flag(f *pflag.FlagSet) {
	f.Var(o, "logging-format", "Sets the log format. Permitted formats: \"json\", \"text\".")
}

// String returns the value of the flag.
func (o *Format) String() string {
	if o.json {
		return "json"
	}
	return "text"
}

// Type returns the type name that pflag prints.
func (*Format) Type() string { return "string" }

// Set selects the format named text. An empty text selects the text format. Other names are an
// error.
func (o *Format) Set(text string) error {
	if text != "" && text != "text" && text != "json" {
		return fmt.Errorf("unsupported log format: %s, permitted formats are json and text", text)
	}
	o.json = text == "json"
	return nil
}

// New returns a logger that writes records of at least level to w in this format.
func (o *Format) New(w io.Writer, level slog.Leveler) *slog.Logger {
	options := &slog.HandlerOptions{Level: level}
	if o.json {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}
