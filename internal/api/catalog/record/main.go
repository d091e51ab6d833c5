// Command record replays the tables in internal/api/catalog/testdata against upstream's kube-apiserver.
// It prints how the results differ from the recorded ones, or records them with -rewrite.
//
// It is a separate module, so that hyperkube itself does not depend on k8s.io/kubernetes. See
// README.md for how to record the tables for a new minor version.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// options are the flags of this command, which replays test data tables against an API server.
type options struct {
	// testdata is the directory of the tables.
	testdata string
	// rewrite updates the tables.
	rewrite bool
	// quiet omits the differences and prints only the numbers of cases.
	quiet bool
	// kubeconfig is the kubeconfig file of a running server; if empty, the command starts a server.
	kubeconfig string
	// etcd is the client URL of that server's etcd. It may be empty; then the stored objects of update
	// requests are written through the API.
	etcd string
	// serverArgs are additional arguments of the started server.
	serverArgs string
	// log is the file that the started server's log is written to.
	log string
}

func main() {
	var o options
	flag.StringVar(&o.testdata, "testdata", "../testdata", "directory of the tables")
	flag.BoolVar(&o.rewrite, "rewrite", false, "record the results instead of printing what differs")
	flag.BoolVar(&o.quiet, "quiet", false, "print only the numbers of cases")
	flag.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig file of a running upstream kube-apiserver; by default, one is started")
	flag.StringVar(&o.etcd, "etcd", "", "client URL of the etcd of the server in -kubeconfig")
	flag.StringVar(&o.serverArgs, "server-args", "", "additional arguments of the started kube-apiserver, separated by spaces")
	flag.StringVar(&o.log, "server-log", os.DevNull, "file for the log of the started kube-apiserver")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "Usage: record [flags] [TABLE...]\n\nA TABLE is a path below testdata, such as apps or apps/deployment.yaml. Default: all tables.")
		flag.PrintDefaults()
	}
	flag.Parse()
	same, err := run(context.Background(), &o, flag.Args(), os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "record:", err)
		os.Exit(2)
	}
	if !same {
		os.Exit(1)
	}
}

// run sends the requests of test data tables to the API server and prints the results to out. names are the files or
// directories of the tables; none means all. It reports whether all results equal the recorded ones. With -rewrite it
// records the results instead and returns true.
func run(ctx context.Context, o *options, names []string, out io.Writer) (bool, error) {
	files, err := tableFiles(o.testdata, names)
	if err != nil {
		return false, err
	}
	bases, err := allBases(o.testdata)
	if err != nil {
		return false, err
	}
	config, etcd, stop, err := connect(ctx, o)
	if err != nil {
		return false, err
	}
	defer stop()
	r, err := newReplayer(config, etcd, bases)
	if err != nil {
		return false, err
	}
	var sum count
	for _, name := range files {
		n, err := replayFile(ctx, r, o, name, out)
		if err != nil {
			return false, fmt.Errorf("%s: %w", name, err)
		}
		sum.add(n)
	}
	fmt.Fprintf(out, "total: %s\n", sum)
	return sum.different == 0 || o.rewrite, nil
}

// connect returns the configuration of a client and a client of the server's etcd, which is nil
// without -etcd. It starts a server unless -kubeconfig names a running one. The caller must call
// the returned function at the end.
func connect(ctx context.Context, o *options) (*rest.Config, *clientv3.Client, func(), error) {
	if o.kubeconfig == "" {
		return startServer(ctx, strings.Fields(o.serverArgs), o.log)
	}
	config, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("reading kubeconfig: %w", err)
	}
	if o.etcd == "" {
		return config, nil, func() {}, nil
	}
	etcd, err := clientv3.New(clientv3.Config{Endpoints: []string{o.etcd}})
	if err != nil {
		return nil, nil, nil, fmt.Errorf("connecting to etcd: %w", err)
	}
	return config, etcd, func() { _ = etcd.Close() }, nil
}

// tableFiles returns the files of tables. names are paths of files or directories below dir; none means
// all.
func tableFiles(dir string, names []string) ([]string, error) {
	if len(names) == 0 {
		names = []string{"."}
	}
	var files []string
	for _, name := range names {
		err := filepath.WalkDir(filepath.Join(dir, name), func(file string, _ fs.DirEntry, err error) error {
			if strings.HasSuffix(file, ".yaml") {
				files = append(files, file)
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	if len(files) == 0 {
		return nil, errors.New("no tables")
	}
	slices.Sort(files)
	return slices.Compact(files), nil
}

// allBases returns the base objects of all tables by apiVersion and kind.
func allBases(dir string) (map[string][]json.RawMessage, error) {
	files, err := tableFiles(dir, nil)
	if err != nil {
		return nil, err
	}
	bases := map[string][]json.RawMessage{}
	for _, name := range files {
		tab, err := readTable(name)
		if err != nil {
			return nil, err
		}
		var m metav1.TypeMeta
		if err := json.Unmarshal(tab.Base, &m); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		kind := m.APIVersion + " " + m.Kind
		bases[kind] = append(bases[kind], tab.Base)
	}
	return bases, nil
}

// count contains the numbers of replayed cases by outcome: the result equals the recorded one,
// differs from it, or the server cannot replay the case.
type count struct{ equal, different, notReplayable int }

// add adds the numbers of d, which are those of another table, to c.
func (c *count) add(d count) {
	c.equal += d.equal
	c.different += d.different
	c.notReplayable += d.notReplayable
}

// String returns the numbers in the form in which the command prints them.
func (c count) String() string {
	return fmt.Sprintf("%d equal, %d different, %d not replayable", c.equal, c.different, c.notReplayable)
}

// replayFile sends the requests of all cases of the table in the file name to the server, compares the results with
// the recorded ones and prints the outcome to out. With -rewrite it records the results in the file. Cases that the
// server cannot replay keep their recorded results.
func replayFile(ctx context.Context, r *replayer, o *options, name string, out io.Writer) (count, error) {
	var n count
	tab, err := readTable(name)
	if err != nil {
		return n, err
	}
	t, err := r.start(ctx, tab)
	if err != nil {
		return n, err
	}
	var lines strings.Builder
	changed := map[int]bool{}
	for i := range tab.Cases {
		c := &tab.Cases[i]
		got, err := t.replay(ctx, c)
		var not notReplayable
		switch {
		case errors.As(err, &not):
			n.notReplayable++
			fmt.Fprintf(&lines, "  not replayable: %s: %v\n", c.Name, err)
		case err != nil:
			return n, fmt.Errorf("%s: %w", c.Name, err)
		default:
			diff := c.diff(got)
			if diff == "" {
				n.equal++
				continue
			}
			n.different++
			changed[i] = true
			fmt.Fprintf(&lines, "  different: %s:\n%s", c.Name, diff)
			c.Errors, c.Warnings, c.Becomes, c.Cells = got.errors, got.warnings, got.becomes, got.cells
		}
	}
	fmt.Fprintf(out, "%s: %s\n", name, n)
	if !o.quiet {
		_, _ = io.WriteString(out, lines.String())
	}
	if !o.rewrite || len(changed) == 0 {
		return n, nil
	}
	old, err := os.ReadFile(name)
	if err != nil {
		return n, err
	}
	return n, os.WriteFile(name, tab.rewritten(old, changed), 0o644)
}
