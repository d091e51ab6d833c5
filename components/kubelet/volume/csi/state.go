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

// pluginName is the folder's name below a pod's volumes.
const pluginName = "kubernetes.io~csi"

// dataFile is beside every mount. Its name and keys are upstream's.
const dataFile = "vol_data.json"

// data is what a kubelet must know to take a volume back.
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
	// Label is the SELinux label that the volume is mounted with, if it is so.
	Label string `json:"seLinuxMountContext,omitempty"`
}

// key names a volume on this node.
type key struct{ driver, handle string }

func (d data) key() key { return key{d.Driver, d.Handle} }

// unique is how the node's status speaks of the volume.
func (k key) unique() v1.UniqueVolumeName {
	return v1.UniqueVolumeName("kubernetes.io/csi/" + k.driver + "^" + k.handle)
}

// attachmentName is upstream's name of the attachment of a volume to a node.
func attachmentName(k key, node string) string {
	return fmt.Sprintf("csi-%x", sha256.Sum256([]byte(k.handle+k.driver+node)))
}

// inlineHandle is the handle of a volume that lives with its pod.
func inlineHandle(volume string, pod types.UID) string {
	return fmt.Sprintf("csi-%x", sha256.Sum256([]byte(volume+string(pod))))
}

// readData reads a data file; fs.ErrNotExist if there is none.
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
		return data{}, errors.New("decoding a volume's data: it names no driver or volume")
	}
	return d, nil
}

// places of the driver's volumes on the node.
type places struct{ root string }

func (p places) pods() string { return filepath.Join(p.root, "pods") }

// staged is the folder of what is known of a staged volume; its mount is
// globalmount within.
func (p places) staged(k key) string {
	return filepath.Join(p.root, "plugins", "kubernetes.io", "csi", k.driver, fmt.Sprintf("%x", sha256.Sum256([]byte(k.handle))))
}

func globalMount(staged string) string { return filepath.Join(staged, "globalmount") }

// use is one pod's use of a volume.
type use struct {
	data
	pod types.UID
	dir string
}

// uses returns what pods of this node use, by the files that tell; with an error
// those that can be read.
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

// allStaged returns the volumes that are staged or were about to be; with an error
// those that are known.
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
