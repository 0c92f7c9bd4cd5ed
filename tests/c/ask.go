// SPDX-License-Identifier: Apache-2.0
// usage: ask MODEL: reads a text and asks about it, through the C API.
package main

/*
#include <stdlib.h>
#include <episodic/c/episodic.h>
*/
import "C"

import (
	"fmt"
	"os"
	"strings"
	"unsafe"
)

func check(code C.int32_t) {
	if code != C.EPISODIC_OK {
		panic(C.GoString(C.episodic_last_error()))
	}
}

func main() {
	path := C.CString(os.Args[1])
	defer C.free(unsafe.Pointer(path))
	sentence := "The old man walked slowly to the river in the evening. "
	text := strings.Repeat(sentence, 40) +
		"The pass key of Nora is 52871. Remember it. 52871 is the pass key of Nora. " +
		strings.Repeat(sentence, 110)
	question := "\n\n\nWhat is the pass key of Nora?\n\nThe pass key of Nora is"
	ctext, cquestion := C.CString(text), C.CString(question)
	defer C.free(unsafe.Pointer(ctext))
	defer C.free(unsafe.Pointer(cquestion))

	var model C.episodic_model
	var sequence C.episodic_sequence
	var answer C.episodic_answer
	var length C.size_t
	check(C.episodic_model_load(path, nil, &model))
	check(C.episodic_sequence_new(model, &sequence))
	check(C.episodic_sequence_attach(sequence, nil, 0))
	check(C.episodic_sequence_read(sequence, ctext, C.size_t(len(text)), nil, nil, nil))
	check(C.episodic_sequence_ask(sequence, cquestion, C.size_t(len(question)), nil, nil, nil, &answer))
	check(C.episodic_answer_text(answer, nil, 0, &length))
	bytes := make([]byte, length+1)
	check(C.episodic_answer_text(answer, (*C.char)(unsafe.Pointer(&bytes[0])), C.size_t(len(bytes)), &length))
	fmt.Println(string(bytes[:length]))
	check(C.episodic_answer_free(answer))
	check(C.episodic_sequence_free(sequence))
	check(C.episodic_model_free(model))
}
