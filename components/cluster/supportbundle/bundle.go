// Package supportbundle writes an archive that describes a cluster and its machine, so that other people can find out why it
// does not work: the command `hyperkube support-bundle`. It also works without an API server.
//
// A collector is a name and a function that adds files to the archive. All collectors run concurrently, each with a
// limit on time and size. The failure of one is recorded in errors.txt in the archive and does not affect the others.
// Every file passes through a [redactor], which removes credentials.
package supportbundle

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"hyperkube/internal/host/layout"
)

// Limits of a collector, and of a file in the archive. Of a file that is too large, the end is kept, because the end of a
// log is what matters.
const (
	collectorTimeout = 15 * time.Second
	maxFileSize      = 4 << 20
	maxFiles         = 500
)

// Config configures a support bundle.
type Config struct {
	Layout layout.Node
	// Check returns the result of `hyperkube check`, Status that of `hyperkube status`. Both are encoded as JSON.
	Check, Status func(context.Context) any
}

// collector collects one kind of data for the support bundle.
type collector struct {
	name string
	run  func(ctx context.Context, c *collection) error
}

// file is a file in the archive.
type file struct {
	name string
	data []byte
	// limit is how many bytes of the end of data are written.
	limit int
	// beginningMissing means that data is the end of a longer file, of which it contains overlap bytes more than limit.
	beginningMissing bool
}

// content returns what is written to the archive: the end of the file without credentials. They are removed before the
// rest is cut, because a part of one would not be recognized.
func (f file) content(redact *redactor) []byte {
	data := redact.file(f.name, f.data)
	if f.beginningMissing {
		data = data[min(overlap, len(data)):]
	}
	return tail(data, f.limit, f.beginningMissing)
}

// collection contains the files of one collector. It is safe for concurrent use.
type collection struct {
	cfg Config
	// cluster is the client of the API server; it has an error instead if there is no kubeconfig.
	cluster *cluster

	mu     sync.Mutex // guards the fields below
	closed bool       // set when the time is over; later files are ignored
	files  []file
	errs   []error
}

// add adds a file to the archive, or its end if it is larger than maxFileSize. Empty files are ignored. Files after the
// first maxFiles are omitted and recorded as one error.
func (c *collection) add(name string, data []byte) {
	c.addFileData(file{name: name, data: data, limit: maxFileSize})
}

// addFileData is add for a file with another limit.
func (c *collection) addFileData(f file) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || len(f.data) == 0 {
		return
	}
	if len(c.files) >= maxFiles {
		if len(c.files) == maxFiles {
			c.errs = append(c.errs, fmt.Errorf("there are more than %d files, the others are left out", maxFiles))
			c.files = append(c.files, file{})
		}
		return
	}
	c.files = append(c.files, f)
}

// fail records an error without stopping the collector.
func (c *collection) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil && !c.closed {
		c.errs = append(c.errs, err)
	}
}

// close returns what was collected until now, and ignores what is added later.
func (c *collection) close() ([]file, []error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	return slices.DeleteFunc(c.files, func(f file) bool { return f.name == "" }), c.errs
}

// tail returns the last limit bytes of data, from the beginning of a line, after a line that states that the beginning
// is omitted. It returns data if that is not longer than limit, unless beginningMissing is true: then data begins within
// a line.
func tail(data []byte, limit int, beginningMissing bool) []byte {
	if len(data) <= limit && !beginningMissing {
		return data
	}
	data = data[max(0, len(data)-limit):]
	if at := bytes.IndexByte(data, '\n'); at >= 0 {
		data = data[at+1:]
	}
	return append([]byte("… the beginning is left out\n"), data...)
}

// collectors returns all collectors.
func collectors() []collector {
	return []collector{
		{"summary", collectSummary}, {"logs", collectLogs}, {"journal", collectJournal}, {"configuration", collectConfiguration},
		{"network", collectNetwork}, {"rules", collectRules}, {"host", collectHost}, {"parameters", collectParameters}, {"cgroups", collectCgroups},
		{"processes", collectProcesses}, {"runtime", collectRuntime}, {"objects", collectObjects}, {"profiles", collectProfiles},
	}
}

// Write collects data and writes the archive to the file at path, which only its owner can read. It returns the
// collectors that failed; their errors are in the archive.
func Write(ctx context.Context, cfg Config, name string) (failed []string, err error) {
	out, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("creating the support bundle: %w", err)
	}
	defer func() {
		if err = errors.Join(err, out.Close()); err != nil {
			_ = os.Remove(name) // an incomplete archive is useless
		}
	}()
	failed, err = writeArchive(ctx, cfg, collectors(), out)
	if err != nil {
		return failed, fmt.Errorf("writing the support bundle: %w", err)
	}
	return failed, nil
}

// writeArchive runs the collectors and writes what they have found to w.
func writeArchive(ctx context.Context, cfg Config, list []collector, w io.Writer) (failed []string, err error) {
	began := time.Now()
	cl := newCluster(cfg.Layout)
	// The values of Secrets must be known before any file is written.
	redact := newRedactor(cl.secretValues(ctx))
	collections := make([]*collection, len(list))
	var group sync.WaitGroup
	for i, one := range list {
		collections[i] = &collection{cfg: cfg, cluster: cl}
		group.Go(func() { runCollector(ctx, one, collections[i]) })
	}
	group.Wait()
	zip := gzip.NewWriter(w)
	archive := tar.NewWriter(zip)
	write := func(name string, data []byte) error {
		header := &tar.Header{Name: path.Join("support-bundle", name), Mode: 0o600, Size: int64(len(data)), ModTime: began, Typeflag: tar.TypeReg}
		if err := archive.WriteHeader(header); err != nil {
			return err
		}
		_, err := archive.Write(data)
		return err
	}
	var problems strings.Builder
	for i, one := range list {
		files, errs := collections[i].close()
		for _, f := range files {
			if err := write(f.name, f.content(redact)); err != nil {
				return nil, err
			}
		}
		for _, err := range errs {
			fmt.Fprintf(&problems, "%s: %v\n", one.name, err)
		}
		if len(errs) > 0 {
			failed = append(failed, one.name)
		}
	}
	if problems.Len() > 0 {
		if err := write("errors.txt", redact.file("errors.txt", []byte(problems.String()))); err != nil {
			return nil, err
		}
	}
	return failed, errors.Join(archive.Close(), zip.Close())
}

// runCollector runs a collector until it returns or its time is over. Then it continues in the background, and what it
// adds is ignored. A panic of the collector is recorded as an error.
func runCollector(ctx context.Context, one collector, c *collection) {
	ctx, cancel := context.WithTimeout(ctx, collectorTimeout)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		defer func() {
			if problem := recover(); problem != nil {
				done <- fmt.Errorf("the collector has panicked: %v", problem)
			}
		}()
		done <- one.run(ctx, c)
	}()
	select {
	case err := <-done:
		c.fail(err)
	case <-ctx.Done():
		// Collectors that respect ctx return now.
		grace := time.NewTimer(time.Second)
		defer grace.Stop()
		select {
		case _ = <-done: // that the time is over explains its error
		case <-grace.C:
		}
		c.fail(fmt.Errorf("stopped after %s: %w", collectorTimeout, context.Cause(ctx)))
	}
}
