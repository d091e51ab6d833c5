package control

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/utils/dump"
)

// TemplateHash is what names the object that a template stands for: a
// ReplicaSet of a Deployment, a ControllerRevision of a DaemonSet. The collision
// count, nil if there was none, gives another hash to the same template. Equal
// to upstream's, so that a cluster can change hands without a rollout.
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
