package hello

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"hyperkube/internal/base/lifecycle"
)

// newGet returns the `hello get URL` command, an HTTP client for images without a shell.
func newGet() *cobra.Command {
	var every, timeout time.Duration
	cmd := &cobra.Command{
		Use:   "get URL",
		Short: "Send a GET request to a web server, once or repeatedly",
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
	cmd.Flags().DurationVar(&every, "every", 0, "Repeat the request at this interval and print the result of each.")
	cmd.Flags().DurationVar(&timeout, "timeout", 5*time.Second, "Timeout of a request.")
	return cmd
}

// get sends one GET request to url and copies the response body to out. A status code of 400 or
// more is an error.
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
