package cluster

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"
)

// output is the form in which a command answers: "json", or empty for text.
type output string

// flag adds -o to the command.
func (o *output) flag(cmd *cobra.Command) {
	cmd.Flags().StringVarP((*string)(o), "output", "o", "", "Output format: json, or text when empty.")
}

// write writes the answer: v as JSON, or what text writes.
func (o output) write(w io.Writer, v any, text func(io.Writer) error) error {
	switch o {
	case "":
		return text(w)
	case "json":
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		return enc.Encode(v)
	}
	return codedError{fmt.Errorf("unknown output format %q: json is known, and text when empty", string(o)), ExitConfig}
}
