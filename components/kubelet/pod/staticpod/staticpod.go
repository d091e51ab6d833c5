// Package staticpod reads static pods from a directory of manifests or a URL, and manages their
// mirror pods in the API.
//
// https://kubernetes.io/docs/tasks/configure-pod-container/static-pod/
package staticpod

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"

	"hyperkube/components/kubelet/pod/pods"
	"hyperkube/internal/api/core/pod"
	"hyperkube/internal/pod/podutil"
)

// Sink receives the static pods of the sources. Each source calls its methods from its own goroutine.
type Sink interface {
	// Set adds a pod. A changed manifest results in another UID: the source removes the old pod before.
	Set(p *v1.Pod)
	// Remove removes the pod with that UID, because its manifest was removed or has changed.
	Remove(uid types.UID)
}

// Source reads static pods from a directory and watches it. Each file is the manifest of one pod, in YAML or
// JSON. Files whose name begins with a dot are ignored. The path may also be that of a single manifest.
type Source struct {
	Dir      string
	NodeName string
	Sink     Sink
	Log      *slog.Logger
	// Ignored is called once for a pod that is not run because another manifest has the same name.
	// It may be nil.
	Ignored func(p *v1.Pod)

	// ignored are the UIDs of the pods that Ignored was called for, and known those of the pods that the sink
	// has, by file.
	ignored map[string]types.UID
	known   map[string]types.UID // by file
	// removed are the files that were removed since the last read, even if they were recreated.
	// Their pods are restarted.
	removed map[string]bool
}

// quietPeriod is how long a directory must be unchanged before it is read, so that partially written
// manifests are not read.
const quietPeriod = 50 * time.Millisecond

// Run passes the pods of the directory to the sink, and watches the directory until ctx is done. It calls
// first once, after the first read. It creates the directory if it does not exist. It returns an error if the
// directory cannot be watched.
func (s *Source) Run(ctx context.Context, first func()) error {
	dir := filepath.Clean(s.Dir)
	watched := []string{filepath.Dir(dir), dir}
	if s.single() {
		watched = watched[:1]
	} else if err := os.MkdirAll(s.Dir, 0o755); err != nil {
		return fmt.Errorf("creating the static pod directory: %w", err)
	}
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watching the static pod directory: %w", err)
	}
	defer watcher.Close()
	// The parent directory is watched to detect that the directory is recreated.
	for _, path := range watched {
		if err := watcher.Add(path); err != nil {
			return fmt.Errorf("watching the static pod directory: %w", err)
		}
	}
	s.known, s.removed = map[string]types.UID{}, map[string]bool{}
	s.read()
	first()
	quiet := time.NewTimer(time.Hour)
	quiet.Stop()
	defer quiet.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case event, ok := <-watcher.Events:
			if !ok {
				return errors.New("watching the static pod directory: watcher closed")
			}
			switch {
			case filepath.Clean(event.Name) == dir:
				if event.Has(fsnotify.Create) && !s.single() {
					_ = watcher.Remove(dir) // of a previous directory
					if err := watcher.Add(dir); err != nil {
						s.Log.Warn("watching the recreated static pod directory failed; changes of static pod manifests have no effect: restart the kubelet", "directory", dir, "err", err)
					}
				}
			case filepath.Dir(event.Name) != dir:
				continue
			case event.Has(fsnotify.Remove) || event.Has(fsnotify.Rename):
				s.removed[filepath.Join(s.Dir, filepath.Base(event.Name))] = true
			}
			quiet.Reset(quietPeriod)
		case err := <-watcher.Errors:
			s.Log.Warn("watch of the static pod directory reported an error, so changes may have been missed; reading the directory again now", "directory", dir, "err", err)
			quiet.Reset(quietPeriod)
		case <-quiet.C:
			s.read()
		}
	}
}

// read reads the directory and updates the sink. If the directory does not exist, all pods are removed. A
// manifest that is invalid leaves its running pod unchanged. If two manifests have pods of the same name,
// only the first one is run.
func (s *Source) read() {
	paths, err := s.paths()
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		s.Log.Warn("reading the static pod directory failed; the current static pods continue to run, retrying at the next change in the directory", "directory", s.Dir, "err", err)
		return
	}
	for path := range s.removed {
		if uid, ok := s.known[path]; ok {
			delete(s.known, path)
			s.Sink.Remove(uid)
		}
	}
	clear(s.removed)
	seen := map[string]bool{}
	names := map[string]string{}
	doubles := map[string]types.UID{} // pods that are ignored because another one has their name
	defer func() { s.ignored = doubles }()
	for _, path := range paths {
		p, err := load(path, s.NodeName)
		if errors.Is(err, errNotRegularFile) {
			continue
		}
		seen[path] = true
		if err != nil {
			s.Log.Warn("static pod manifest is invalid; its pod is not started or continues with the previous manifest: correct the file, it is then read again", "file", path, "err", err)
			continue
		}
		if other, taken := names[p.Namespace+"/"+p.Name]; taken {
			s.Log.Warn("static pod is not run because another manifest has a pod of the same name: rename or remove one of the two", "pod", p.Namespace+"/"+p.Name, "file", path, "otherFile", other)
			if s.Ignored != nil && s.ignored[path] != p.UID {
				s.Ignored(p)
			}
			doubles[path] = p.UID
			continue
		}
		names[p.Namespace+"/"+p.Name] = path
		if s.known[path] == p.UID {
			continue
		}
		if old, ok := s.known[path]; ok {
			s.Sink.Remove(old)
		}
		s.known[path] = p.UID
		s.Sink.Set(p)
	}
	for path, uid := range s.known {
		if !seen[path] {
			delete(s.known, path)
			s.Sink.Remove(uid)
		}
	}
}

// errNotRegularFile is returned by load for a path that is not a regular file or does not exist.
var errNotRegularFile = errors.New("not a regular file")

// load returns the pod of a manifest file for the node. It returns errNotRegularFile if path must be ignored,
// because it is not a regular file or does not exist, and another error if the file is too large or not a valid
// pod.
func load(path, nodeName string) (*v1.Pod, error) {
	info, err := os.Stat(path)
	if err != nil || !info.Mode().IsRegular() {
		return nil, errNotRegularFile
	}
	if info.Size() > maxDocumentSize {
		return nil, fmt.Errorf("manifest exceeds %d bytes", maxDocumentSize)
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading manifest: %w", err)
	}
	return decodeFile(raw, path, nodeName)
}

// Problems returns an error for each manifest of a directory that the kubelet does not run, for diagnostics.
// A pod that was running before continues to run with its previous manifest.
func Problems(dir string) []error {
	s := &Source{Dir: dir}
	paths, err := s.paths()
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return []error{fmt.Errorf("reading the static pod directory: %w", err)}
	}
	var problems []error
	names := map[string]string{} // files by pod name
	for _, path := range paths {
		p, err := load(path, "node")
		if errors.Is(err, errNotRegularFile) {
			continue
		}
		if err == nil {
			key := p.Namespace + "/" + p.Name
			if other := names[key]; other != "" {
				err = fmt.Errorf("its pod has the same name as that of %s", other)
			}
			names[key] = path
		}
		if err != nil {
			problems = append(problems, fmt.Errorf("manifest %s is not run: %w", path, err))
		}
	}
	return problems
}

// single reports whether Dir is the path of a single manifest instead of a directory.
func (s *Source) single() bool {
	info, err := os.Stat(s.Dir)
	return err == nil && info.Mode().IsRegular()
}

// paths returns the paths of the files in the directory that may be manifests: those whose names do not begin
// with a dot. If Dir is a file, it returns only that.
func (s *Source) paths() ([]string, error) {
	if s.single() {
		return []string{s.Dir}, nil
	}
	entries, err := os.ReadDir(s.Dir)
	var out []string
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".") {
			out = append(out, filepath.Join(s.Dir, e.Name()))
		}
	}
	return out, err
}

// decodeFile returns the pod of a manifest file for the node nodeName. raw is the content, in YAML or JSON, and
// file the path, whose modification time is stored in an annotation. It returns an error if the pod cannot be run.
func decodeFile(raw []byte, file, nodeName string) (*v1.Pod, error) {
	doc, err := yaml.YAMLToJSON(raw)
	if err != nil {
		return nil, fmt.Errorf("decoding manifest: %w", err)
	}
	p, err := decode(doc, "file", file, nodeName)
	if err != nil {
		return nil, err
	}
	if info, err := os.Stat(file); err == nil {
		p.Annotations[annotationSeen] = info.ModTime().Format(time.RFC3339Nano)
	}
	return p, nil
}

// annotationSeen is the annotation of static pods with the time of their last change.
const annotationSeen = "kubernetes.io/config.seen"

// decode returns the pod of a manifest, a JSON document, as a pod of this node: the node name is appended to
// its name, its UID is a hash of the content and the origin, and defaults are applied. source is "file" or
// "http", and from the path or the URL. It returns an error if the pod cannot be run.
func decode(doc []byte, source, from, nodeName string) (*v1.Pod, error) {
	p := &v1.Pod{}
	if err := json.Unmarshal(doc, p); err != nil {
		return nil, fmt.Errorf("decoding manifest: %w", err)
	}
	if p.Kind != "Pod" || p.APIVersion != "v1" {
		return nil, fmt.Errorf("want a Pod of v1, got %q of %q", p.Kind, p.APIVersion)
	}
	p.TypeMeta.Kind, p.TypeMeta.APIVersion = "", ""
	if len(p.Spec.Containers) == 0 {
		return nil, errors.New("spec.containers: Required value")
	}
	if p.Name == "" {
		return nil, errors.New("metadata.name: Required value")
	}
	if p.Namespace == "" {
		p.Namespace = v1.NamespaceDefault
	}
	hash := sha256.New()
	fmt.Fprintf(hash, "host:%s\n%s:%s\n", nodeName, source, from)
	hash.Write(doc)
	uid := hex.EncodeToString(hash.Sum(nil))[:32]
	p.UID = types.UID(uid)
	p.Name += "-" + strings.ToLower(nodeName)
	if list := validation.IsDNS1123Subdomain(p.Name); len(list) > 0 {
		return nil, fmt.Errorf("metadata.name: %s", strings.Join(list, "; "))
	}
	if p.Annotations == nil {
		p.Annotations = map[string]string{}
	}
	p.Annotations[pods.AnnotationHash] = uid
	p.Annotations[pods.AnnotationSource] = source
	p.Spec.NodeName = nodeName
	if p.Spec.Priority == nil && (p.Spec.PriorityClassName == "system-node-critical" || p.Spec.PriorityClassName == "system-cluster-critical") {
		priority := int32(podutil.SystemCritical)
		if p.Spec.PriorityClassName == "system-node-critical" {
			priority = 2000001000
		}
		p.Spec.Priority = &priority
	}
	p.Spec.Tolerations = append(p.Spec.Tolerations, v1.Toleration{Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoExecute})
	pod.Default(p)
	if err := check(p); err != nil {
		return nil, err
	}
	p.Status = v1.PodStatus{Phase: v1.PodPending, QOSClass: p.Status.QOSClass}
	return p, nil
}
