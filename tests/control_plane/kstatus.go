package main

import (
	"fmt"
	"io"
	"os"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
)

// kstatus reads an array of objects of Kubernetes from stdin, and writes a line for each: its status,
// by the library that Flux judges health with, and the message.
func kstatus() error {
	text, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	// The decoder of Kubernetes, which reads whole numbers as such only in values of any type.
	var objects []any
	if err := json.Unmarshal(text, &objects); err != nil {
		return err
	}
	for _, object := range objects {
		content, isObject := object.(map[string]any)
		if !isObject {
			return fmt.Errorf("%v is no object", object)
		}
		of := unstructured.Unstructured{Object: content}
		result, err := status.Compute(&of)
		if err != nil {
			return err
		}
		fmt.Printf("%s/%s %s: %s\n", of.GetNamespace(), of.GetName(), result.Status, result.Message)
	}
	return nil
}
