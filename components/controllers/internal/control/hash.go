package control

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/utils/dump"
)

// TemplateHash returns the hash that names the object of a template: a ReplicaSet of a Deployment,
// or a ControllerRevision of a DaemonSet. The collision count, nil if there was no collision,
// changes the hash. The hash is equal to upstream's, so that replacing upstream's controllers does
// not cause a rollout.
func TemplateHash(template *corev1.PodTemplateSpec, collisions *int32) string {
	h := fnv.New32a()
	fmt.Fprintf(h, "%v", dump.ForHash(*template))
	if collisions != nil {
		var b [8]byte
		binary.LittleEndian.PutUint32(b[:], uint32(*collisions))
		h.Write(b[:])
	}
	return rand.SafeEncodeString(fmt.Sprint(h.Sum32()))
}
