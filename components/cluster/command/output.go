package command

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"
)

// Output is the form in which a command answers: "json", or empty for text.
type Output string

// Flag adds -o to the command.
func (o *Output) Flag(cmd *cobra.Command) {
	cmd.Flags().StringVarP((*string)(o), "output", "o", "", "Output format: json, or text when empty.")
}

// Write writes the answer: v as JSON, or what text writes.
func (o Output) Write(w io.Writer, v any, text func(io.Writer) error) error {
	switch o {
	case "":
		return text(w)
	case "json":
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		return enc.Encode(v)
	}
	return ConfigError(fmt.Errorf("unknown output format %q: json is known, and text when empty", string(o)))
}
