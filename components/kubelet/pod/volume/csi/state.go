package csi

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// pluginName is the name of the directory below a pod's volumes directory.
const pluginName = "kubernetes.io~csi"

// dataFile is the file beside every mount. Its name and keys are those of upstream.
const dataFile = "vol_data.json"

// data is what a kubelet must know to tear down a volume.
type data struct {
	// Spec is the name of the persistent volume, or of the pod's volume if it is
	// inline.
	Spec   string `json:"specVolID,omitempty"`
	Handle string `json:"volumeHandle"`
	Driver string `json:"driverName"`
	Node   string `json:"nodeName,omitempty"`
	// Attachment is the VolumeAttachment's name; empty if the volume is not
	// attached.
	Attachment string `json:"attachmentID,omitempty"`
	Mode       string `json:"volumeLifecycleMode,omitempty"`
	Block      bool   `json:"block,omitempty"`
	// Label is the SELinux mount label of the volume, if it has one.
	Label string `json:"seLinuxMountContext,omitempty"`
}

// key identifies a volume on this node.
type key struct{ driver, handle string }

func (d data) key() key { return key{d.Driver, d.Handle} }

// unique returns the volume's name in the status of the node.
func (k key) unique() v1.UniqueVolumeName {
	return v1.UniqueVolumeName("kubernetes.io/csi/" + k.driver + "^" + k.handle)
}

// attachmentName returns the name of the VolumeAttachment of a volume to a node, as in upstream.
func attachmentName(k key, node string) string {
	return fmt.Sprintf("csi-%x", sha256.Sum256([]byte(k.handle+k.driver+node)))
}

// inlineHandle returns the handle of an inline ephemeral volume.
func inlineHandle(volume string, pod types.UID) string {
	return fmt.Sprintf("csi-%x", sha256.Sum256([]byte(volume+string(pod))))
}

// readData reads a data file. It returns fs.ErrNotExist if the file does not exist.
func readData(dir string) (data, error) {
	raw, err := os.ReadFile(filepath.Join(dir, dataFile))
	if err != nil {
		return data{}, err
	}
	return decodeData(raw)
}

func decodeData(raw []byte) (data, error) {
	var d data
	if err := json.Unmarshal(raw, &d); err != nil {
		return data{}, fmt.Errorf("decoding a volume's data: %w", err)
	}
	if d.Driver == "" || d.Handle == "" {
		return data{}, errors.New("decoding a volume's data: driver or volume is missing")
	}
	return d, nil
}

// places returns the paths of CSI volumes on the node.
type places struct{ root string }

func (p places) pods() string { return filepath.Join(p.root, "pods") }

// staged is the directory of a staged volume's data; the mount is the subdirectory globalmount.
func (p places) staged(k key) string {
	return filepath.Join(p.root, "plugins", "kubernetes.io", "csi", k.driver, fmt.Sprintf("%x", sha256.Sum256([]byte(k.handle))))
}

func globalMount(staged string) string { return filepath.Join(staged, "globalmount") }

// use is the use of a volume by one pod.
type use struct {
	data
	pod types.UID
	dir string
}

// uses returns the volumes that pods of this node use, read from the data files. If some files are
// damaged, it returns an error and the others.
func (p places) uses() ([]use, error) {
	var out []use
	var damaged []error
	for _, kind := range []string{"volumes", "volumeDevices"} {
		files, err := filepath.Glob(filepath.Join(p.pods(), "*", kind, pluginName, "*", dataFile))
		if err != nil {
			return nil, fmt.Errorf("looking for volumes in use: %w", err)
		}
		for _, f := range files {
			dir := filepath.Dir(f)
			d, err := readData(dir)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				damaged = append(damaged, fmt.Errorf("%s: %w", f, err))
				continue
			}
			rel := strings.TrimPrefix(dir, p.pods()+"/")
			uid, _, _ := strings.Cut(rel, "/")
			out = append(out, use{data: d, pod: types.UID(uid), dir: dir})
		}
	}
	return out, errors.Join(damaged...)
}

// allStaged returns the volumes that are staged or being staged. If some files are damaged, it
// returns an error and the others.
func (p places) allStaged() ([]data, error) {
	files, err := filepath.Glob(filepath.Join(p.root, "plugins", "kubernetes.io", "csi", "*", "*", dataFile))
	if err != nil {
		return nil, fmt.Errorf("looking for staged volumes: %w", err)
	}
	var out []data
	var damaged []error
	for _, f := range files {
		d, err := readData(filepath.Dir(f))
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			damaged = append(damaged, fmt.Errorf("%s: %w", f, err))
		default:
			out = append(out, d)
		}
	}
	return out, errors.Join(damaged...)
}
