package command

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"
)

// Output is the value of the flag -o, the output format of a command: "json", or empty for text.
type Output string

// Flag adds the flag -o to cmd.
func (o *Output) Flag(cmd *cobra.Command) {
	cmd.Flags().StringVarP((*string)(o), "output", "o", "", "Output format. One of: json. Text if empty.")
}

// Write writes v to w as JSON, or calls text to write it as text, depending on the format. It returns a configuration
// error if the format is unknown.
func (o Output) Write(w io.Writer, v any, text func(io.Writer) error) error {
	switch o {
	case "":
		return text(w)
	case "json":
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		return enc.Encode(v)
	}
	return ConfigError(fmt.Errorf("unknown output format %q, allowed formats are: json", string(o)))
}
