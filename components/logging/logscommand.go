package logging

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"hyperkube/components/logging/query"
	"hyperkube/internal/credentials/kubeconfig"
)

// logsOptions are the flags of `hyperkube logs`.
type logsOptions struct {
	selection              kubeconfig.Selection
	allNamespaces          bool
	params                 query.Params
	since                  time.Duration
	sinceTime, untilTime   string
	output, color          string
	timestamps, noPrefixes bool
}

// NewLogsCommand returns the `hyperkube logs` command.
func NewLogsCommand() *cobra.Command {
	var o logsOptions
	cmd := &cobra.Command{
		Use:   "logs [POD]",
		Short: "Search the stored logs of pods, also of deleted ones, and of nodes",
		Long: `Search the stored logs of pods and nodes.

Unlike kubectl logs, this command also finds the logs of deleted pods, of all pods of a selector or of the cluster
together, and searches them by time and by a regular expression. It needs the add-on logging:

  hyperkube addon enable logging

A user may read the logs of a namespace with the permission to get pods/log there, those of all namespaces with that
permission in all namespaces, and those of nodes with the permission to get nodes/log.`,
		Example: `  # Errors of all pods with a label in the last hour
  hyperkube logs -l app=web --since 1h --grep 'error|panic'

  # The last 100 lines of a pod, which may be deleted, and new ones
  hyperkube logs web-6b6b8d9c4c-8x2lq --tail 100 -f

  # Logs of the main process of a node
  hyperkube logs --node-logs --node vm --file hyperkube`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return o.run(cmd, args) },
	}
	f := cmd.Flags()
	o.selection.AddFlags(f)
	f.StringVarP(&o.selection.Namespace, "namespace", "n", "", "Namespace of the pods. If empty, that of the context is used.")
	f.BoolVarP(&o.allNamespaces, "all-namespaces", "A", false, "Search the pods of all namespaces.")
	f.StringVarP(&o.params.Selector, "selector", "l", "", "Label selector for pods.")
	f.StringVarP(&o.params.Container, "container", "c", "", "Name of the container. By default all containers.")
	f.StringVar(&o.params.Node, "node", "", "Name of the node. By default all nodes.")
	f.BoolVar(&o.params.NodeLogs, "node-logs", false, "Search the logs of the processes of nodes instead of those of pods.")
	f.StringVar(&o.params.File, "file", "", "Name of the log file, without its extension, with --node-logs. By default all.")
	f.DurationVar(&o.since, "since", 0, "Search only logs newer than this duration, for example 5m or 2h.")
	f.StringVar(&o.sinceTime, "since-time", "", "Search only logs from this time on (RFC 3339).")
	f.StringVar(&o.untilTime, "until", "", "Search only logs before this time (RFC 3339), or older than this duration.")
	f.StringVar(&o.params.Grep, "grep", "", "Print only records that match this regular expression (RE2).")
	f.IntVar(&o.params.Tail, "tail", 0, "Print only this number of the newest records. 0 prints all.")
	f.BoolVarP(&o.params.Follow, "follow", "f", false, "Print new records as they appear.")
	f.StringVarP(&o.output, "output", "o", "text", "Output format: text or json (one object per line).")
	f.StringVar(&o.color, "color", "auto", "Colors of pods: auto, always or never.")
	f.BoolVar(&o.timestamps, "timestamps", false, "Print the time of each record.")
	f.BoolVar(&o.noPrefixes, "no-prefix", false, "Do not print the name of the pod and container before each record.")
	return cmd
}

// complete validates the flags, and sets the parameters that depend on the time and the kubeconfig.
func (o *logsOptions) complete(args []string, now time.Time, namespace string) error {
	p := &o.params
	if len(args) > 0 {
		p.Pod = args[0]
	}
	switch {
	case p.Pod != "" && p.Selector != "":
		return errors.New("specify either a pod or a selector")
	case p.Pod != "" && o.allNamespaces:
		return errors.New("specify the namespace of the pod with -n instead of -A")
	case p.NodeLogs && (p.Pod != "" || p.Selector != "" || p.Container != "" || o.allNamespaces || o.selection.Namespace != ""):
		return errors.New("--node-logs searches logs of nodes: it excludes pods, selectors, containers and namespaces")
	case p.File != "" && !p.NodeLogs:
		return errors.New("--file requires --node-logs")
	case o.output != "text" && o.output != "json":
		return fmt.Errorf("unknown output format %q, use text or json", o.output)
	case o.color != "auto" && o.color != "always" && o.color != "never":
		return fmt.Errorf("unknown --color %q, use auto, always or never", o.color)
	case o.since != 0 && o.sinceTime != "":
		return errors.New("specify either --since or --since-time")
	case p.Follow && o.untilTime != "":
		return errors.New("--until excludes --follow")
	case p.Tail < 0:
		return errors.New("--tail must not be negative")
	}
	if !p.NodeLogs && !o.allNamespaces {
		p.Namespace = namespace
	}
	var err error
	if o.since != 0 {
		p.Since = now.Add(-o.since)
	} else if p.Since, err = parseTime("--since-time", o.sinceTime, now); err != nil {
		return err
	}
	p.Until, err = parseTime("--until", o.untilTime, now)
	return err
}

// parseTime parses a time, or a duration before now. An empty text is the zero time.
func parseTime(flag, text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if d, err := time.ParseDuration(text); err == nil {
		return now.Add(-d), nil
	}
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return time.Time{}, fmt.Errorf("%s: %q is neither a time like %s nor a duration like 2h", flag, text, time.RFC3339)
	}
	return at, nil
}

// run prints the logs.
func (o *logsOptions) run(cmd *cobra.Command, args []string) error {
	ctx := cmd.Context()
	loader := o.selection.Loader()
	namespace, _, err := loader.Namespace()
	if err != nil {
		return fmt.Errorf("reading kubeconfig: %w", err)
	}
	if err := o.complete(args, time.Now(), namespace); err != nil {
		return err
	}
	cfg, err := loader.ClientConfig()
	if err != nil {
		return fmt.Errorf("reading kubeconfig: %w", err)
	}
	cfg.UserAgent = "hyperkube-logs"
	body, err := o.open(cmd, cfg)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	defer body.Close()
	err = o.print(cmd, body)
	if ctx.Err() != nil {
		return nil // interrupted by the user
	}
	return err
}

// errOff is the error for a cluster without the add-on.
var errOff = errors.New("log collection is off in this cluster; to enable it, run: hyperkube addon enable logging (logs of running pods: kubectl logs)")

// open sends the request and returns the body of the response.
func (o *logsOptions) open(cmd *cobra.Command, cfg *rest.Config) (io.ReadCloser, error) {
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("creating API client: %w", err)
	}
	host, _, err := rest.DefaultServerUrlFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("reading address of the API server: %w", err)
	}
	at := url.URL{Scheme: host.Scheme, Host: host.Host, Path: host.Path, RawQuery: o.params.Values().Encode()}
	req, err := http.NewRequestWithContext(cmd.Context(), http.MethodGet, at.JoinPath(query.Path(o.params)).String(), nil)
	if err != nil {
		return nil, fmt.Errorf("creating request: %w", err)
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("searching logs: %w", err)
	}
	if resp.StatusCode == http.StatusOK {
		return resp.Body, nil
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if err != nil {
		return nil, fmt.Errorf("searching logs: %w", err)
	}
	var status metav1.Status
	_ = json.Unmarshal(text, &status) // other responses have no message
	switch {
	case resp.StatusCode == http.StatusNotFound:
		return nil, errOff
	case resp.StatusCode == http.StatusServiceUnavailable:
		return nil, errors.New("the logging agents are not ready; see: kubectl -n kube-system get pods -l k8s-app=hyperkube-logging")
	case resp.StatusCode == http.StatusForbidden && status.Details != nil && status.Details.Group == query.Group:
		return nil, fmt.Errorf("searching logs: %s; the roles view, edit and admin permit it", status.Message)
	case status.Message != "":
		return nil, fmt.Errorf("searching logs: %s", status.Message)
	}
	return nil, fmt.Errorf("searching logs: the server responded %s", resp.Status)
}

// print prints the lines of the response.
func (o *logsOptions) print(cmd *cobra.Command, body io.Reader) error {
	out := bufio.NewWriterSize(cmd.OutOrStdout(), 64<<10)
	defer out.Flush() //nolint:errcheck // reported by the writes of a following output, if there is one
	p := newPrinter(out, o, cmd.OutOrStdout())
	return query.ReadLines(body, func(l query.Line) error {
		if l.Warning != "" {
			fmt.Fprintln(cmd.ErrOrStderr(), "Warning:", l.Warning)
			return nil
		}
		if err := p.print(l); err != nil {
			return err
		}
		if o.params.Follow {
			return out.Flush()
		}
		return nil
	})
}
