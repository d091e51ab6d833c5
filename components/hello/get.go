package hello

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"hyperkube/internal/lifecycle"
)

// newGet is `hello get URL`: the other side, for images without a shell.
func newGet() *cobra.Command {
	var every, timeout time.Duration
	cmd := &cobra.Command{
		Use:   "get URL",
		Short: "Ask a web server, once or again and again",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			client := &http.Client{Timeout: timeout, Transport: &http.Transport{DisableKeepAlives: true}}
			out := cmd.OutOrStdout()
			if every == 0 {
				return get(cmd.Context(), client, args[0], out)
			}
			for cmd.Context().Err() == nil {
				if err := get(cmd.Context(), client, args[0], io.Discard); err != nil {
					fmt.Fprintf(out, "bad: %v\n", err)
				} else {
					fmt.Fprintln(out, "good")
				}
				lifecycle.Pause(cmd.Context(), every)
			}
			return nil
		},
	}
	cmd.Flags().DurationVar(&every, "every", 0, "Ask again and again with this pause, and tell of each time whether it went well.")
	cmd.Flags().DurationVar(&timeout, "timeout", 5*time.Second, "How long to wait for an answer.")
	return cmd
}

// get asks once, over a connection of its own, and copies the answer to out.
func get(ctx context.Context, client *http.Client, url string, out io.Writer) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(out, resp.Body); err != nil {
		return err
	}
	if resp.StatusCode >= http.StatusBadRequest {
		return errors.New(resp.Status)
	}
	return nil
}
